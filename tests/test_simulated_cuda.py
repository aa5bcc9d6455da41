"""Test the simulated CUDA device itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.simulated_cuda import CUDA, simulated_cuda
from tests.support.traffic import num_waits


def test_mixing_device_and_cpu_tensors_is_refused() -> None:
    with simulated_cuda() as traffic:
        on_device = torch.ones(3).to(CUDA)
        with pytest.raises(RuntimeError, match="same device"):
            on_device + torch.ones(3)
        assert (on_device[torch.tensor([0, 2])] + 1).cpu().tolist() == [2.0, 2.0]
        assert [event.waits for event in traffic.events] == [True, True, True]


def test_graph_repeats_operations_on_the_same_tensors() -> None:
    with simulated_cuda():
        given, added = torch.zeros(3, device=CUDA), torch.ones(3, device=CUDA)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        result = (given[1:] + added[1:]).to(torch.float64)
        graph.capture_end()
        given.fill_(4)
        graph.replay()
        assert result.tolist() == [5.0, 5.0]
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="not permitted in a graph"):
            given.tolist()
        graph.capture_end()


def test_waits_are_logged() -> None:
    with simulated_cuda() as traffic:
        on_device = torch.from_numpy(np.arange(4)).to(CUDA, non_blocking=True)
        on_device[2:] = on_device[:2] + 1
        assert num_waits(traffic.take()) == 0
        for work in (
            lambda: on_device.tolist(),
            lambda: bool(on_device[0]),
            lambda: on_device[[0, 1]],
            lambda: on_device[on_device > 1],
            lambda: torch.tensor([1], device=CUDA),
            lambda: torch.bincount(on_device),
            lambda: torch.zeros(4, device=CUDA).copy_(torch.ones(4)),
        ):
            work()
            assert num_waits(traffic.take()) == 1


def test_launches_are_counted_without_views() -> None:
    with simulated_cuda() as traffic:
        on_device = torch.zeros(2, 3, device=CUDA)
        before = traffic.launches
        view = on_device[1:].view(-1)
        assert traffic.launches == before
        view.add_(1)
        on_device + 1
        assert traffic.launches == before + 2
