"""A system without one call: as an older kernel is, or a sandbox that does not know the call."""

import ctypes
import os
import platform
import struct

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL_WITH = 0x7FFF0000, 0x00050000
_OPENAT2 = 437  # on every architecture that has come after 2019's unification of the numbers
_ENOSYS = 38


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def without_openat2() -> None:
    """Let openat2 be unknown to this process, for good."""
    steps = [(_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, _OPENAT2), (_RETURN, 0, 0, _FAIL_WITH | _ENOSYS)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0 or (
        libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(_Program(len(steps), program)))
    ):
        error = ctypes.get_errno()
        raise OSError(error, f"{os.strerror(error)}: no seccomp filter on {platform.machine()}")
