"""Atomic naming of a file: rename(2), and renameat2(2) with RENAME_NOREPLACE where nothing may be replaced.

Two writers of the same new name cannot both succeed. Where the C library or the file system lacks renameat2, link(2)
(for files) and mkdir(2) with a rename over the empty folder (for folders) refuse a taken name just as atomically.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

_RENAME_NOREPLACE = 1
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
if _renameat2 is not None:
    _renameat2.restype = ctypes.c_int
    _renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


def rename(source_folder: int, source: str, folder: int, name: str, *, overwrite: bool) -> None:
    """Move a directory entry; names are single components. Raises OSError EEXIST when taken and not `overwrite`."""
    if overwrite:
        os.rename(source, name, src_dir_fd=source_folder, dst_dir_fd=folder)
        return
    code = errno.ENOSYS
    if _renameat2 is not None:
        failed = _renameat2(source_folder, os.fsencode(source), folder, os.fsencode(name), _RENAME_NOREPLACE)
        code = ctypes.get_errno() if failed else 0
    if code in _UNSUPPORTED:
        _rename_by_claim(source_folder, source, folder, name)
    elif code:
        raise OSError(code, os.strerror(code))


def _rename_by_claim(source_folder: int, source: str, folder: int, name: str) -> None:
    """EINVAL also means that a folder is moved into itself; then rename(2) reports it again."""
    if stat.S_ISDIR(os.stat(source, dir_fd=source_folder, follow_symlinks=False).st_mode):
        os.mkdir(name, 0o700, dir_fd=folder)
        try:
            os.rename(source, name, src_dir_fd=source_folder, dst_dir_fd=folder)
        except OSError:
            os.rmdir(name, dir_fd=folder)
            raise
    else:
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(source, dir_fd=source_folder)
