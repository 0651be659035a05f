"""The processor that kernels are compiled for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedrecall import InputError
from fedrecall.client.lanes import jit
from fedrecall.client.lanes.jit import HASWELL, host


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """The processor is looked at once in a process, and here once in a test."""
    host.cache_clear()
    yield
    host.cache_clear()


def test_a_processor_without_fma_is_refused_in_a_sentence(monkeypatch) -> None:
    features = jit.llvm.get_host_cpu_features()
    features["fma"] = False
    monkeypatch.setattr(jit.llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(jit.llvm, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    with pytest.raises(InputError, match=r"no AVX2 and FMA instructions.*; choose local.step=exact"):
        host()


def test_a_processor_with_avx512_that_torch_is_told_not_to_use_runs_code_for_avx2(monkeypatch) -> None:
    features = jit.llvm.get_host_cpu_features() | dict.fromkeys(("avx2", "fma", "avx512f", "avx512vl"), True)
    monkeypatch.setattr(jit.llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(jit.llvm, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(jit.torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert host() == HASWELL
