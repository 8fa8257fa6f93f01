"""Make the allreduce of torch's DistributedDataParallel sparse: a communication hook, and its state.

    model = DistributedDataParallel(net)
    state = SparseState(net.named_parameters(), density=0.01, algorithm="elect", optimizer=optimizer)
    model.register_comm_hook(state, sparse_hook)

Every bucket of gradients is reduced by itself while the backward pass continues, to the mean over the ranks; sparse
tensors, of embeddings, are added up exactly, row by row, and stay sparse. The residual belongs to the parameters: DDP
moves them to other buckets after the first step, and when a resumed job begins.
"""

from __future__ import annotations

from sparse_mpi.training.ddp_state import SparseState, sparse_hook

__all__ = ["SparseState", "sparse_hook"]
