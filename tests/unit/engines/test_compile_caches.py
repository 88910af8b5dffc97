"""The folders of compiled kernels, and whether they have grown."""

from __future__ import annotations

from pathlib import Path

from tuner.engines.server.metrics import CompileCaches, cache_folders


def test_a_variable_names_its_folder_and_home_has_the_others(tmp_path: Path) -> None:
    found = cache_folders({"HOME": "/h", "TRITON_CACHE_DIR": "/t", "FLASHINFER_WORKSPACE_BASE": "/f"})
    assert {Path("/t"), Path("/f/.cache/flashinfer"), Path("/h/.cache/vllm"), Path("/h/.nv/ComputeCache")} <= set(found)
    assert Path("/h/.triton/cache") not in found


def test_a_folder_in_another_one_counts_once() -> None:
    found = cache_folders({"VLLM_CACHE_ROOT": "/v", "TRITON_CACHE_DIR": "/v/triton"})
    assert found == (Path("/v"),)


def test_a_new_kernel_is_growth_until_the_next_mark(tmp_path: Path) -> None:
    caches = CompileCaches({"TRITON_CACHE_DIR": str(tmp_path / "triton")})
    caches.mark()
    assert not caches.grew()
    kernel = tmp_path / "triton" / "AB12" / "moe.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    assert caches.grew()
    caches.mark()
    assert not caches.grew()
