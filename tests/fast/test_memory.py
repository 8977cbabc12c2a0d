"""The memory of the tensors of an update."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from torchrl_vmfer.fast import memory
from torchrl_vmfer.fast.memory import empty_tensors

# Prints the page faults of updates that allocate and free hidden units and gradients while small
# tensors stay allocated. Runs in a new process, because the heap of this one depends on earlier
# tests, and loads only one file, because importing the package takes seconds.
SCRIPT = """
import resource, runpy, torch

empty_tensors = runpy.run_path({file!r})["empty_tensors"]
kept = []

def update():
    (units,) = empty_tensors([2 * 137_000])
    units.fill_(0)
    kept.append(torch.ones(100))
    gradients = empty_tensors([2, 256, 23], [2, 256], [2, 256, 256], [2, 256], [2, 1, 256], [2, 1])
    for gradient in gradients:
        gradient.fill_(0)
    return gradients

for _ in range(20):
    gradients = update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    gradients = update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries may return pages")
def test_tensors_of_an_update_reuse_the_same_pages():
    command = [sys.executable, "-c", SCRIPT.format(file=memory.__file__)]
    faults = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert faults < 2000  # of the 80,000 pages that 200 updates write


def test_tensors_are_aligned_and_do_not_overlap():
    shapes = [(3, 5), (1,), (0, 4), (), (17,), (2, 2, 2)]
    tensors = empty_tensors(*shapes)
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    for number, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        assert tensor.shape == shape
        assert tensor.dtype is torch.float32
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0 or tensor.numel() == 0
        assert (tensor == number).all()


def test_tensors_are_independent_of_each_other():
    first, second = empty_tensors([3], [4])
    versions = first._version, second._version
    first.fill_(0)
    assert (first._version, second._version) == (versions[0] + 1, versions[1])
    assert not first._is_view()
    assert first.detach_() is first
