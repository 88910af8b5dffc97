"""What a model is, in one line: layers by kind, experts, weights, and what its cache holds."""

from __future__ import annotations

from collections import Counter

from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Recurrent
from search_spaces.catalogue.models import ModelShape
from search_spaces.units import GIB


def described(shape: ModelShape) -> str:
    """Return a model in one line, such as `30.5 B weights (56.9 GiB); 48 layers with full attention; ...`.

    Of a model that is not read in full, the line has the key that is not understood.
    """
    if shape.unread is not None:
        return f"not understood: {shape.unread.key}"
    mixers = Counter[str]()
    for group in shape.groups:
        mixers[_mixer(group)] += group.count
    del mixers[""]
    layers = ", ".join(f"{count} {'layer' if count == 1 else 'layers'} {kind}" for kind, count in mixers.items())
    form = "" if shape.quantization is None else f", {shape.quantization}"
    state = shape.least_kv_bytes(0, 2)
    held = f"KV cache {shape.kv_bytes_per_token(2) / 1024:,.4g} KiB a token in 16 bits"
    parts = [f"{shape.parameters / 1e9:,.1f} B weights ({shape.weight_bytes() / GIB:,.1f} GiB{form})", layers]
    parts += [*_experts(shape), held, *([f"state {state / 2**20:,.1f} MiB a sequence"] if state else [])]
    return "; ".join(parts)


def _mixer(group: LayerGroup) -> str:
    mixer = group.mixer
    if isinstance(mixer, LatentAttention):
        return "with latent attention (MLA)"
    if isinstance(mixer, Recurrent):
        return f"with a state ({mixer.kind})"
    if isinstance(mixer, Attention) and mixer.window:
        return f"with {'chunks' if mixer.chunked else 'a window'} of {mixer.window:,} tokens"
    if isinstance(mixer, Attention):
        return "with full attention"
    return ""


def _experts(shape: ModelShape) -> list[str]:
    found: dict[str, int] = {}
    for group in shape.groups:
        if isinstance(group.mlp, Experts):
            shared = " and a shared one" if group.mlp.shared else ""
            kind = f"{group.mlp.count} experts{shared}, {group.mlp.chosen} chosen"
            found[kind] = found.get(kind, 0) + group.count
    return [f"{kind}, in {count} layers" for kind, count in found.items()]
