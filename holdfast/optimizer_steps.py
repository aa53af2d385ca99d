"""Counting the steps of a script that does not report them: by a hook of its optimizers.

PyTorch calls hooks that all optimizers share after each `step()`, also of an optimizer that was
made before the hook. Ours adds one to a number on the progress page, notes the time, and has the
gradients looked at (`gradient_watch`): no tensor is changed, no GPU is waited for, nothing is
drawn. It costs microseconds (see benchmarks/instrument.py).

One optimizer is counted: the first that steps, until another one steps twice in between. So a pair
that takes turns counts as one step, of two the one that steps more often is counted, and where one
phase of a training follows another the number grows on. Of calls inside each other (a `step()` that
calls that of its parent class, or of an optimizer that it wraps) the outermost counts. Steps that
are left out (gradient accumulation, a `GradScaler` that finds an inf) are none.

The hook is set when torch is there: at once in a worker whose parent has imported it, else at the
import. `holdfast.train.join()` takes it away, because then the script reports by itself. A child of
the worker that is forked is left alone; one that is spawned never has the hook.

Whatever goes wrong in here is said once and ends the counting, or the looking, never the training.
A hook that is being called cannot be taken away, because PyTorch walks through all of them; it does
nothing then.
"""

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from holdfast import later_imports, rank
from holdfast.gradient_watch import GradientWatch
from holdfast.page import Page

OPTIMIZERS = "torch.optim.optimizer"
COMPILER = "torch._dynamo"
RECENT = 0.1  # weight of the newest step in the mean
OUTLIER = 4.0  # a pause for an evaluation does not look like slow steps for long
_TOLD = (
    "optimizer steps are counted to show progress, and their gradients are checked for NaN; "
    "`instrument: off` in the job file (or: holdfast run --no-instrument) turns this off."
)

Hook = Callable[[Any, Any, Any], None]


class StepCount:
    """How many steps there were, and how long they take lately."""

    def __init__(self) -> None:
        self.count = 0
        self.mean_s = 0.0
        self._at = 0.0  # the newest
        self._counted: Callable[[], Any] = _nothing  # weak references
        self._other: Callable[[], Any] = _nothing  # has stepped since the counted one did

    def takes(self, optimizer: object, now: float) -> bool:
        """Whether this step of this optimizer, done `now`, is one more."""
        if optimizer is not self._counted():
            if self._counted() is not None and optimizer is not self._other():
                if self._other() is None:
                    self._other = weakref.ref(optimizer)
                return False
            self._counted = weakref.ref(optimizer)
        self._other = _nothing
        self._add(now)
        return True

    def _add(self, now: float) -> None:
        took, self._at = now - self._at, now
        self.count += 1
        if self.count == 2:
            self.mean_s = took
        elif self.count > 2:
            self.mean_s += RECENT * (min(took, OUTLIER * self.mean_s) - self.mean_s)


class Observer:
    """The hook in this process, and where it writes to."""

    def __init__(self, page: Page, stepped: Callable[[int], None]) -> None:
        self._page: Page | None = page  # None: no more
        self._tell = stepped
        self._pid = os.getpid()
        self._steps = StepCount()
        self._gradients: GradientWatch | None = None
        self._handle: Any = None  # of the hook
        self._imports_matter_no_longer: Callable[[], None] = _nothing

    def set_up(self) -> None:
        """Set the hook, or watch for the import after which it can be."""
        wanted = {OPTIMIZERS: self._set, COMPILER: self._hide}
        self._imports_matter_no_longer = later_imports.when_imported(wanted)

    def stop(self) -> None:
        """Count no more, and say nothing of what was counted. Not for use inside the hook."""
        self._imports_matter_no_longer()
        self._forget()
        if self._handle is not None:
            self._handle.remove()

    def _set(self, optimizers: ModuleType) -> None:
        if self._page is not None:
            self._gradients = GradientWatch(self._page)
            self._handle = vars(optimizers)["register_optimizer_step_post_hook"](self._stepped)

    def _hide(self, compiler: ModuleType) -> None:
        """From the compiler, which would make the hook a part of a step that is compiled. In its
        place, because the hooks may be being called."""
        hooks = self._handle.hooks_dict_ref() if self._handle is not None else None
        if hooks is not None and self._handle.id in hooks:
            hooks[self._handle.id] = vars(compiler)["disable"](self._stepped)

    def _stepped(self, optimizer: object, _args: object, _options: object) -> None:
        if self._page is None or os.getpid() != self._pid:
            return
        try:
            self._count(self._page, optimizer)
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def _count(self, page: Page, optimizer: object) -> None:
        if _is_captured():
            self._give_up("a CUDA graph replays them without calling the optimizer")
            return
        now = time.monotonic()
        if _is_inner(sys._getframe(1)) or not self._steps.takes(optimizer, now):
            return
        page.optimizer_stepped(self._steps.count, now, self._steps.mean_s)
        self._tell(self._steps.count)
        if self._steps.count == 1:
            rank.say(_TOLD)
        self._look(optimizer, now)

    def _look(self, optimizer: object, now: float) -> None:
        try:
            if self._gradients is not None:
                self._gradients.stepped(optimizer, self._steps.count, now)
        except Exception as error:
            self._gradients = None
            _complain(f"gradients are not checked any more: {type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        with contextlib.suppress(Exception):
            self._forget()
        self._page = None
        _complain(f"optimizer steps are no longer counted: {why}")

    def _forget(self) -> None:
        page, self._page = self._page, None
        if page is not None and os.getpid() == self._pid:
            page.forget_optimizer()


_observer: Observer | None = None


def observe(page: Page, stepped: Callable[[int], None] = lambda _count: None) -> None:
    """Count the steps of the optimizers of this process on its page, and tell of each."""
    global _observer
    _observer = Observer(page, stepped)
    _observer.set_up()


def leave_to_the_script() -> None:
    """It reports its steps by itself."""
    global _observer
    observer, _observer = _observer, None
    if observer is not None:
        observer.stop()


def _nothing() -> None:
    """What a weak reference says whose object is gone."""


def _complain(text: str) -> None:
    with contextlib.suppress(Exception):
        print(f"holdfast: {text}", file=sys.stderr)


def _is_captured() -> bool:
    """Whether this step is being recorded into a CUDA graph."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


def _is_inner(frame: FrameType | None) -> bool:
    """Whether one `step()` was called inside another: PyTorch wraps both in the same function."""
    wrapper = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and frame.f_globals.get("__name__") == OPTIMIZERS:
            if wrapper is code:
                return True
            wrapper = code
        frame = frame.f_back
    return False
