"""Orders of calls: loops as people write them, programs that went wrong once, and orders that are refused."""

from __future__ import annotations

from .calls import WHOLE, Call, Program

HOOKS = ("ddp", "fsdp")
FIRST, STEP, UPDATE = Call("backward", 1), Call("step"), Call("update")  # a pass that uses the first layer alone
NONE, ZEROS = Call("zero_grad", True), Call("zero_grad", False)
CLOSURE, WAITS, SYNCHRONIZE = Call("closure", 0), Call("unreduced", 0), Call("synchronize")
END = (NONE, WHOLE, STEP, UPDATE) * 2  # all ranks reduce once more
OVERFLOW = (Call("overflow", 0), STEP, UPDATE)
COPIED = "a copy and a load"  # torch copies no DTensors
# Loops as people write them
LOOPS: dict[str, tuple[Call, ...]] = {
    "plain": (NONE, WHOLE, STEP) * 4,
    "zeros": (ZEROS, WHOLE, STEP) * 4,
    "closure": (CLOSURE,) * 4,
    "left out": (NONE, WHOLE, STEP, NONE, WHOLE, NONE, STEP) * 2,
    "a layer that some leave out": (NONE, Call("some"), STEP, NONE, WHOLE, STEP) * 2,
    "accumulated": (NONE, WAITS, WHOLE, STEP) * 4,
    "added up": (NONE, WHOLE, STEP, WHOLE, STEP) * 2,
    "two losses": (NONE, WHOLE, FIRST, STEP) * 4,
    "uneven passes": (NONE, WHOLE, STEP, NONE, WHOLE, WHOLE, WHOLE, STEP) * 2,
    "clipped": (NONE, WHOLE, Call("clip", 0.05), STEP) * 4,
    "changed behind synchronize": (NONE, WHOLE, SYNCHRONIZE, Call("clip", 0.05), STEP) * 4,
    **{how: (NONE, WHOLE, Call("change", how), STEP) * 4 for how in ("data", "replace")},
    "another pass": (NONE, WHOLE, NONE, WHOLE, STEP) * 4,
    COPIED: (WHOLE, STEP, Call("copy", "copy"), Call("copy", "pickle"), Call("reload"), *END),
    "frozen": (NONE, WHOLE, STEP, Call("freeze", 1), NONE, WHOLE, STEP, Call("unfreeze", 1), NONE, WHOLE, STEP) * 2,
}
# The loops in which each momentum that error feedback applies trains as in torch, with hooks
TAKEN = ("plain", "zeros", "closure", "a layer that some leave out", "accumulated")
SCALERS = ("", "unscale", "synchronize", "synchronize unscale", "unscale synchronize")
STEADY = (NONE, WHOLE, STEP) * 3
# Programs by which a rank alone, or all, trained otherwise once
KNOWN: dict[str, list[Program]] = {
    "optimizer": [
        Program((WHOLE, Call("skip"), *END)),  # each rank stepped along its own
        # Changes that begin when reductions begin early
        Program((*STEADY, NONE, WHOLE, Call("clip", 0.05), STEP, *END), 3),
        Program((*STEADY, NONE, WHOLE, Call("change", "data"), STEP, *END), 3),
        Program(
            (*STEADY, NONE, WHOLE, Call("reload"), STEP, *END), 3, "adam", density=0.1
        ),  # when reductions have begun
        Program(LOOPS["plain"], 3, "super"),  # a step that calls super
        Program((*OVERFLOW, ZEROS, STEP, UPDATE, *END), 1, "decay", scaled=True),
        Program(  # parameters came when other ranks had begun
            (Call("backward", 0, 0), NONE, *(WHOLE, STEP, NONE) * 3, Call("add_group"), *END),
            3,
            density=0.1,
            schedule=1,
        ),
        # A scaled step without gradients of a rank, and an overflow of a rank that is cleared
        Program((WHOLE, Call("zero_grad", True, 0), STEP, UPDATE, *END), 3, scaled=True),
        Program(
            (Call("overflow", 1), Call("unscale"), NONE, WHOLE, STEP, *END),
            2,
            "nesterov",
            density=0.1,
            algorithm="oktopk",
            scaled=True,
        ),
    ],
    "ddp": [
        # unscale_ before the pass: the scaler leaves the scale in
        Program((WHOLE, STEP, UPDATE, Call("unscale"), ZEROS, WHOLE, STEP, *END), 3, "nesterov", scaled=True),
        # Layers that no rank uses: their momentum waits without a gradient, and goes on where that is zero
        *(
            Program((WHOLE, STEP, z, FIRST, STEP, NONE, WHOLE, STEP, *END), 3, "momentum", how)
            for z in (NONE, ZEROS)
            for how in (None, "corrected")
        ),
        Program((WHOLE, STEP, Call("clip", 0.05, 0), ZEROS, FIRST, STEP, *END), 3, "decay", "global", 0.1),
        # A flush behind an overflow in the first step, when nothing was reduced
        Program((*OVERFLOW[:1], Call("flush"), *OVERFLOW[1:], *END), 3, density=0.1, scaled=True),
        # A frozen layer, along whose zeros torch's momentum would go on
        Program((WHOLE, STEP, Call("freeze", 1), ZEROS, WHOLE, STEP, *END), 3, "momentum"),
        # Zeros of some ranks, and none of another, in layers that no rank uses
        Program((WHOLE, STEP, Call("zero_grad", True, 0), ZEROS, FIRST, STEP, *END), 3, density=0.1, algorithm="elect"),
        # A step behind a pass without reduction
        Program((WHOLE, STEP, Call("unreduced", 1), STEP, *END), 3, density=0.1, algorithm="oktopk"),
    ],
    "fsdp": [
        Program((WHOLE, Call("change", "in place", 2), STEP, *END), 4, "momentum", density=0.1),
        # One rank flushes where the others reduce
        Program((FIRST, NONE, Call("freeze", 0, 0), FIRST, STEP, Call("flush"), *END), 4, "adam", density=0.1),
    ],
    "local": [Program(LOOPS["plain"], 3, "super", door="local", every=3)],
}
# What the errors of orders of calls say that are none, by door: calls, a program, and words
ONCE = "RuntimeError: backward must reduce once before a step with momentum='{}'.* make all .* model.no_sync"
LEFT = "RuntimeError: gradients must be cleared between a step and the next backward.. or step.. where"
FLUSH = "RuntimeError: (flush must come between two steps|gradients must not wait to be reduced, or to be stepped)"
ALL_SAY = "(?s)ValueError: all ranks must call with the same.*"
TWICE, AGAIN = (NONE, WHOLE, WHOLE, STEP), (NONE, WHOLE, STEP, WHOLE, STEP)
REFUSED: dict[str, tuple[tuple[str, ...], Program, str]] = {
    **{
        f"two passes: {name} {mode}": (
            HOOKS,
            Program(TWICE, optimizer=name, algorithm=algorithm, density=0.1),
            ONCE.format(mode),
        )
        for name, algorithm, mode in (
            ("momentum", "topka", "matched"),
            ("nesterov", "topka", "matched"),
            ("adamw", "topka", "arrival"),
            ("adamw", "elect", "second-moment"),
        )
    },
    "not cleared": (("optimizer", "ddp"), Program(AGAIN, optimizer="momentum", density=0.1), f"{LEFT}|{ONCE[:50]}"),
    "stepped again": (
        ("optimizer", "ddp"),
        Program((NONE, WHOLE, STEP, STEP), optimizer="momentum", density=0.1),
        LEFT,
    ),
    "not cleared, in views": (
        ("ddp",),
        Program(AGAIN, optimizer="momentum", density=0.1, wrap={"gradient_as_bucket_view": True}),
        f"{LEFT}|{ONCE[:50]}",
    ),
    "cleared behind synchronize": (
        ("optimizer",),
        Program((WHOLE, SYNCHRONIZE, NONE, WHOLE, STEP), density=0.1),
        "RuntimeError: gradients that .* must be stepped along before others come; call step",
    ),
    "cleared on one rank behind synchronize": (
        ("optimizer",),
        Program((SYNCHRONIZE, ZEROS, WHOLE, Call("zero_grad", True, 0), STEP, Call("reload"), *END)),
        "RuntimeError: gradients that .* must be stepped along before others come; call step",
    ),
    "passed over on one rank": (
        ("optimizer",),
        Program((NONE, WHOLE, Call("zero_grad", True, 0), Call("skip"), *END)),
        "RuntimeError: gradients must be reduced before a step within skip_synchronize",
    ),
    "a flush behind synchronize": (("optimizer",), Program((WHOLE, SYNCHRONIZE, Call("flush"))), FLUSH),
    "a flush behind a pass": (
        ("optimizer", "ddp", "fsdp"),
        Program((WHOLE, Call("flush")), optimizer="momentum"),
        FLUSH,
    ),
    "frozen on one rank": (
        ("optimizer",),
        Program((*END, Call("freeze", 1, 2), NONE, WHOLE, STEP), 3),
        ALL_SAY + "frozen=",
    ),
    "other numbers of steps": (
        ("local",),
        Program((NONE, WHOLE, STEP, Call("bare_step", None, 2), SYNCHRONIZE), 3, every=4),
        ALL_SAY + "synchronize steps=1.*rank 2: call=synchronize steps=2",
    ),
}
