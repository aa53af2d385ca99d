"""What a freshly forked child does: become a worker, another program, or a store.

It first undoes everything that would tell it from a process started by hand: group, death signal,
signal handlers, standard streams, random state, environment. Only the secret of `hash(str)` cannot
be drawn anew: it is that of the forkserver in all its children. Then it runs the script as
`__main__`. When the script fails, the traceback is shown without our frames and the error is left
in the progress page, where the agent finds it even if the disk is full. Unless the job says no, the
steps of its optimizers are counted there as well, and the agent may ask for its collectives.
"""

import __future__

import ast
import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import signal
import socket
import sys
import types
import zipimport
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from holdfast import (
    dumped_stacks,
    flight_recorder,
    garbage_time,
    group_end,
    learned_imports,
    optimizer_steps,
    rank,
    step_profile,
    stray_signals,
    trainer_hook,
)
from holdfast.agent import (
    failures,
    fork_protocol,
    late_environment,
    late_rank,
    processes,
    script_source,
)
from holdfast.agent.frameworks.begin import begin, begin_in
from holdfast.agent.notes import note
from holdfast.agent.preloading import is_library
from holdfast.checkpoint import arena_ahead
from holdfast.page import Page


class ForkedChild(NamedTuple):
    """A child just after the fork: its order, its descriptors by name, and its parent's pid."""

    order: fork_protocol.Fork
    fds: dict[str, int]
    program: fork_protocol.Program
    parent: int
    loaded: str = ""  # folder of the code that the forkserver was prepared for


def become(born: ForkedChild) -> None:
    """Be what was ordered. Returns where the script ended; the interpreter then ends by itself."""
    _stand_alone(born)
    page_fd = born.fds.get("page")
    match born.order.kind:
        case fork_protocol.ChildKind.STORE:
            _serve_store(born.order, born.fds["report"])
        case fork_protocol.ChildKind.EXEC:
            _execute(born, page_fd)
        case fork_protocol.ChildKind.RUN | fork_protocol.ChildKind.WAIT:
            if "control" in born.fds:
                rank.run_ahead()
                rank.while_waiting += [_map_ahead, _load_ahead]  # the last one first
                if born.order.kind is fork_protocol.ChildKind.RUN:
                    rank.on_rank.append(partial(begin_in, os.getpid()))
    page = Page(page_fd) if page_fd is not None else None
    if page is not None:
        page.end_lock.hold()
    if page is not None and born.program.integrate:
        trainer_hook.watch()
    rank.on_rank.append(late_rank.settle)
    if born.order.kind is fork_protocol.ChildKind.WAIT:
        rank.await_rank("its start")
    if page is not None:
        learned_imports.watch(is_library)
    if page is not None and born.program.instrument:
        optimizer_steps.observe(page, _step_ended)
        step_profile.watch(page)
        garbage_time.watch(page)
        flight_recorder.answer_from_now_on()
        dumped_stacks.offer()
        group_end.leave_at_exit(("gloo",))
    with failures.shown_and_left(page):
        if rank.CONTROL not in os.environ:
            late_rank.settle()
            begin()
        _enter_workdir(born.program)
        _run_to_the_end(born.program, page)


def _load_ahead(control: int) -> None:
    """Of what is imported, only that waits for the rank which cannot note it later."""
    rank.looks_again.append(late_rank.is_noted)
    try:
        has_come = partial(rank.has_come, control, 0.0)
        meanwhile = partial(arena_ahead.map_present, has_come)
        learned_imports.load_while_waiting(control, late_rank.hold_places, meanwhile)
    finally:
        rank.looks_again.clear()


def _map_ahead(control: int) -> None:
    arena_ahead.map_while_waiting(partial(rank.has_come, control))


def _step_ended(count: int) -> None:
    learned_imports.step_ended()
    flight_recorder.step_ended(count)
    if count == 1:  # by now the script has set its handlers
        dumped_stacks.take_back_if_not_ours()
    step_profile.step_ended(count)


def _run_to_the_end(program: fork_protocol.Program, page: Page | None) -> None:
    """A script that has ended well without `join()` still ends as a worker with a rank."""
    worker = os.getpid()
    ended_well = True
    try:
        run_as_main(program)
    except BaseException as error:
        ended_well = failures.is_success(error)
        raise
    finally:
        if ended_well and os.getpid() == worker:
            rank.need(rank.END)
            if page is not None:
                page.script_ended()


def _stand_alone(born: ForkedChild) -> None:
    with contextlib.suppress(PermissionError):  # the parent was faster
        os.setpgid(0, 0)
    processes.die_with_parent(born.parent, signal.SIGKILL)
    processes.let_stacks_be_read()
    _reset_signals()
    _redirect(born.fds.pop("output", None))
    for name, fd in born.fds.items():
        os.environ[f"HOLDFAST_{name.upper()}_FD"] = str(fd)
    found = dict(os.environ)
    os.environ.update(born.program.env)
    os.environ.update(born.order.env)
    late_environment.take_effect(found, "by `holdfast update --set`")
    sys.path[:] = [born.program.located(entry, born.loaded) for entry in sys.path]
    if born.loaded and born.loaded != born.program.root:
        _forget_code_in(born.loaded)
    _draw_anew()


def _forget_code_in(folder: str) -> None:
    """Modules of the version that was loaded ahead are not those of another version."""
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None) or ""
        ours = name.partition(".")[0] in ("holdfast", "__main__")
        if not ours and Path(origin).is_relative_to(folder) and not is_library(origin):
            del sys.modules[name]


def _draw_anew() -> None:
    """Seed what a fresh process seeds by chance, and no fork does by itself.

    `random`, `tempfile` and OpenSSL do it after a fork; `torch.Generator()` always begins alike;
    the generators of a GPU are made later, with the first use of it.
    """
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (uuid := sys.modules.get("uuid")) is not None:
        vars(uuid).update(_node=None, _last_timestamp=None)  # the node may be a random number


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    stray_signals.forget()
    for sig in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(sig, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _redirect(output: int | None) -> None:
    """Nothing to read; both outputs into the agent's pipe, each line at once."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _enter_workdir(program: fork_protocol.Program) -> None:
    os.chdir(program.workdir)  # raises the plain OSError a user understands


def _execute(born: ForkedChild, page_fd: int | None) -> NoReturn:
    """Become the command. What cannot be run exits as it does in a shell: 127 or 126."""
    argv = [*born.program.command, *born.program.args]
    for fd in born.fds.values():
        os.set_inheritable(fd, True)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it; other programs must not
    page = Page(page_fd) if page_fd is not None else None
    with failures.shown_and_left(page):
        begin()
    try:
        _enter_workdir(born.program)
        os.execvpe(argv[0], argv, os.environ)
    except OSError as error:
        print(f"holdfast: cannot run {argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        if page is not None:
            page.fail(failures.of_command(error, argv[0]))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _serve_store(order: fork_protocol.Fork, report: int) -> NoReturn:
    """Host a TCPStore on a free port, say which, and serve until killed."""
    stray_signals.outlive(note, signal.SIGHUP)
    distributed: Any = importlib.import_module("torch.distributed")
    address = order.address
    listener = listen(address, order.ports)
    port = listener.getsockname()[1]
    # Listening on the node's address only: by itself TCPStore would listen on every interface.
    store = distributed.TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    _tell_port(report, port)
    while store is not None:
        signal.pause()
    raise AssertionError("the store was given up")


def _tell_port(report: int, port: int) -> None:
    """Say where the store listens. An agent that is ending may have stopped to listen itself."""
    with contextlib.suppress(BrokenPipeError):
        os.write(report, b"%d\n" % port)
    os.close(report)


def listen(address: str, ports: tuple[int, ...]) -> socket.socket:
    """Listen on the first of these ports that is free. Raises `OSError` if none is."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports[:-1]:
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family, backlog=4096)
    return socket.create_server((address, ports[-1]), family=family, backlog=4096)


# ── the script ────────────────────────────────────────────────────────────────────────────────


def run_as_main(program: fork_protocol.Program) -> None:
    """Run the script or module as `python` would, in a `__main__` that stays until the end."""
    parts, main, argv0 = _main_of_module(program) if program.module else _main_of_script(program)
    sys.argv = [argv0, *program.args]
    sys.modules["__main__"] = main
    found = dict(os.environ)
    for number, code in enumerate(parts):
        if number:
            late_environment.take_effect(found)
        exec(code, main.__dict__)


def _main_of_script(
    program: fork_protocol.Program,
) -> tuple[list[types.CodeType], types.ModuleType, str]:
    path = str(program.script)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"holdfast: can't open file {path!r}: {error.strerror}", file=sys.stderr)
        raise failures.CannotOpenScript(error) from None
    archive = None
    with contextlib.suppress(zipimport.ZipImportError):
        archive = zipimport.zipimporter(path)
    if archive is not None:
        return _main_of_archive(program, archive)
    main = _empty_main(path)
    return _parts(source, path), main, path


def _main_of_archive(
    program: fork_protocol.Program, loader: zipimport.zipimporter
) -> tuple[list[types.CodeType], types.ModuleType, str]:
    """`__main__` of a zip archive (zipapp, PEX, shiv), which replaces its folder on `sys.path`."""
    if sys.path[:1] == [program.path_entry()]:
        sys.path.pop(0)
    sys.path.insert(0, loader.archive)
    parts, main = _main_of_spec(loader.find_spec("__main__"), "__main__")
    return parts, main, loader.archive


def _main_of_module(
    program: fork_protocol.Program,
) -> tuple[list[types.CodeType], types.ModuleType, str]:
    name = str(program.module)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    parts, main = _main_of_spec(spec, name)
    return parts, main, str(main.__file__)


def _main_of_spec(
    spec: importlib.machinery.ModuleSpec | None, name: str
) -> tuple[list[types.CodeType], types.ModuleType]:
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(name) if loader is not None else None
    if spec is None or code is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    origin = spec.origin or name
    main = _empty_main(origin)
    main.__spec__, main.__loader__, main.__package__ = spec, loader, spec.parent
    source = loader.get_source(name)
    return [code] if source is None else _parts(source, origin), main


def _parts(source: bytes | str, path: str) -> list[types.CodeType]:
    """The whole of it, or in two parts: up to where torch is imported, and from there on."""
    tree: Any = compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    at = script_source.torch_at(tree)
    if not at:
        return [compile(source, path, "exec", dont_inherit=True)]
    first = ast.Module(tree.body[:at], type_ignores=[])
    rest = ast.Module(tree.body[at:], type_ignores=[])
    before = compile(first, path, "exec", dont_inherit=True)
    features = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
    return [before, compile(rest, path, "exec", before.co_flags & features, dont_inherit=True)]


def _empty_main(path: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path,
        __cached__=None,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __annotations__={},
    )
    return main
