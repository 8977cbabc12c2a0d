"""Memory of freed tensors is reused."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from torchrl_vmfer.fast import memory

# Prints how many pages were mapped while tensors as large as those of an update come and go. A new
# process, because the heap of this one depends on the tests before.
SCRIPT = """
import resource, runpy, torch

def use():
    tensors = [torch.ones(450_000) for _ in range(4)]  # 1.8 MB each
    small = torch.ones(10)

if {keep}:  # the file alone: importing the package takes seconds
    assert runpy.run_path({file!r})["keep_freed_memory"]()
for _ in range(3):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep):
    command = [sys.executable, "-c", SCRIPT.format(keep=keep, file=memory.__file__)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these options")
def test_tensors_of_an_update_reuse_the_same_pages():
    assert page_faults(keep=True) < 2000
    assert page_faults(keep=False) > 10_000  # otherwise this test shows nothing
