"""A lock in shared memory that a process holds as long as it lives, so that others hear of its end.

A process that is killed has ended for its parent only once the kernel has taken its memory apart,
50 ms for a gigabyte, and seconds for a worker with a GPU. The kernel lets go of robust mutexes
before that (`set_robust_list(2)`; kernel/exit.c, exit_mm). The main thread holds the lock. A
process that becomes another program lets go of it, too: that it is free is a reason to look how
the process is, no more.
"""

import ctypes
import errno
import mmap
import os

LOCK_BYTES = 64  # a pthread_mutex_t has 40, or 48; the last word says that it is held
_HELD_AT = LOCK_BYTES - 8
_SHARED = 1  # PTHREAD_PROCESS_SHARED
_ROBUST = 1  # PTHREAD_MUTEX_ROBUST
_libc = ctypes.CDLL(None)


class EndLock:
    """One such lock, in 64 bytes that begin as zeros."""

    def __init__(self, memory: memoryview) -> None:
        self._mutex = (ctypes.c_char * LOCK_BYTES).from_buffer(memory)
        self._held = ctypes.c_uint64.from_buffer(memory, _HELD_AT)
        self.awaited = False  # by this process

    @staticmethod
    def create() -> int:
        """File descriptor of memory for one."""
        fd = os.memfd_create("holdfast-end", os.MFD_CLOEXEC)
        os.ftruncate(fd, LOCK_BYTES)
        return fd

    @staticmethod
    def of(fd: int) -> "EndLock":
        """The one in such memory; `fd` is closed."""
        memory = mmap.mmap(fd, LOCK_BYTES)
        os.close(fd)
        return EndLock(memoryview(memory))

    def hold(self) -> None:
        """Take it, once, in the main thread of the process that it stands for. Raises `OSError`."""
        attributes = (ctypes.c_char * LOCK_BYTES)()
        _libc.pthread_mutexattr_init(attributes)
        _succeed(_libc.pthread_mutexattr_setpshared(attributes, _SHARED))
        _succeed(_libc.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _succeed(_libc.pthread_mutex_init(self._mutex, attributes))
        _succeed(_libc.pthread_mutex_lock(self._mutex))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._mutex))  # mapped past the interpreter
        self._held.value = 1

    def let_go(self) -> None:
        """How this process will end can be seen already; in the thread that holds it."""
        if self.held:
            _libc.pthread_mutex_unlock(self._mutex)

    @property
    def held(self) -> bool:
        """Whether it was taken, be it long ago."""
        return self._held.value == 1

    def wait(self) -> None:
        """Until whoever took it has let go of it. Blocks its thread."""
        if _libc.pthread_mutex_lock(self._mutex) in (0, errno.EOWNERDEAD):
            _libc.pthread_mutex_unlock(self._mutex)

    def close(self) -> None:
        """It is not looked at any more; the memory may be unmapped."""
        del self._mutex, self._held


def _succeed(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
