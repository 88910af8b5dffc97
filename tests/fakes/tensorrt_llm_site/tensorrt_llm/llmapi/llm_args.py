"""Some options of TensorRT-LLM's LLM API, with the names and defaults of its sources."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class StrictBaseModel(BaseModel):
    """A model that refuses other names."""

    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(StrictBaseModel):
    """The KV cache."""

    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float = Field(default=0.9, ge=0, le=1)
    dtype: str = "auto"
    tokens_per_block: int = 32


class CudaGraphConfig(StrictBaseModel):
    """CUDA graphs."""

    max_batch_size: int = 0
    enable_padding: bool = False


class SchedulerConfig(StrictBaseModel):
    """The scheduler."""

    capacity_scheduler_policy: Literal["MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH"] = "GUARANTEED_NO_EVICT"
    context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] | None = None


class NGramDecodingConfig(StrictBaseModel):
    """Drafts from past text."""

    decoding_type: Literal["NGram"] = "NGram"
    max_draft_len: int = Field(gt=0)
    max_matching_ngram_size: int = 2
    is_public_pool: bool = True


class MTPDecodingConfig(StrictBaseModel):
    """Drafts of layers of the model."""

    decoding_type: Literal["MTP"] = "MTP"
    max_draft_len: int | None = None


class TorchLlmArgs(StrictBaseModel):
    """The options of the PyTorch backend."""

    return_perf_metrics: bool = False
    enable_iter_perf_stats: bool = False
    disable_overlap_scheduler: bool = False
    attn_backend: str = "TRTLLM"
    stream_interval: int = Field(default=1, gt=0)
    kv_cache_config: KvCacheConfig = KvCacheConfig()
    cuda_graph_config: CudaGraphConfig | None = CudaGraphConfig()
    scheduler_config: SchedulerConfig = SchedulerConfig()
    speculative_config: (
        Annotated[NGramDecodingConfig | MTPDecodingConfig, Field(discriminator="decoding_type")] | None
    ) = None
