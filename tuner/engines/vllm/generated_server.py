"""A vLLM server to which the load generator sends closed loops, too, as in studies of several engines."""

from __future__ import annotations

from tuner.engines.server.common_prompts import common_tokens
from tuner.engines.server.generator_server import GeneratorServer
from tuner.engines.server.running_server import HOST
from tuner.engines.server.token_prompts import TokenTools, tokenized
from tuner.engines.server.traffic import PromptTools
from tuner.engines.vllm.server import VllmServer


class GeneratedVllmServer(GeneratorServer, VllmServer):
    """See `Server`. Prompts are token ids if the models of all engines have the same vocabulary, else texts."""

    def _make_tools(self) -> PromptTools:
        tokens = common_tokens(self._tokenizers)
        if not tokens:
            return VllmServer._prompt_tools(self)

        def tokenize(text: str, special: bool) -> list[int]:
            body = {"model": self._model.served_name, "prompt": text, "add_special_tokens": special}
            return tokenized(f"http://{HOST}:{self.port}", body, self._api_key)

        return TokenTools(tokens, self._records, tokenize)
