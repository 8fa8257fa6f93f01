"""Train BERT: --task pretrain tells masked words in plain text, --task squad answers questions about a text.

mpiexec -n 4 python train/bert.py --tiny                              the Python reference, a small model
srun -n 32 python train/bert.py --data-dir ~/wiki                     Wikipedia as WikiExtractor wrote it
srun -n 8 python train/bert.py --task squad --data-dir ~/squad --model-from MODEL.pt --vocab-file VOCAB.txt
"""
