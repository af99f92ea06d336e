"""Finds which file system a path is on, and whether other machines may see the same files."""

from __future__ import annotations

import os
import re

#: File systems of one machine, on which all processes share what they map. Other machines may use any other type.
_LOCAL = frozenset({
    "bcachefs", "btrfs", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "jfs", "nilfs2", "ntfs3",
    "overlay", "ramfs", "reiserfs", "tmpfs", "vfat", "xfs", "zfs",
})  # fmt: skip

_types: dict[int, str] = {}  # by device: a mount is looked for once


def is_on_network(path: str) -> bool:
    """Tell whether other machines may see the files of a path, which need not exist. False where that is not known."""
    while True:
        try:
            device = os.stat(path).st_dev
            break
        except OSError:
            path, below = os.path.dirname(path), path
            if path == below:
                return False
    if device not in _types:
        _types[device] = file_system_type(path)
    return _types[device] != "" and not is_of_one_machine(_types[device])


def is_of_one_machine(file_system: str) -> bool:
    """Tell whether all processes that see a file system of this type share what they map of it."""
    return file_system in _LOCAL


def file_system_type(directory: str) -> str:
    """Return the type of the file system of a directory, as the kernel calls it; "" if that can't be known."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return ""
    found, longest = "", 0
    path = os.path.join(os.path.realpath(directory), "")
    for line in lines:
        mount, _, source = line.partition(" - ")
        # What can't stand in a line is written as octal digits.
        point = os.path.join(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount.split(" ")[4]), "")
        if (
            path.startswith(point) and len(point) >= longest
        ):  # of two that are mounted on one place, the later one is seen
            found, longest = source.split(" ")[0], len(point)
    return found
