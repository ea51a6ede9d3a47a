"""``python -m hetero_tvm.serve_text DIR``: a language model behind HTTP, in the words of OpenAI's API."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import EXITS, command_parser
from hetero_tvm.errors import UsageError
from hetero_tvm.host.install import extra_command

KEY_VARIABLE = "HETERO_TVM_API_KEY"

_EXAMPLES = {
    "out --port 8000": "for clients on this machine: http://127.0.0.1:8000/v1",
    "out --host 0.0.0.0 --api-key SECRET": "for all who know the key",
}
_EXITS = {
    **EXITS,
    0: "ended by Ctrl-C or SIGTERM",
    130: "ended by Ctrl-C before it listened (143: SIGTERM, 129: SIGHUP)",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Serve a language model that was built: /v1/completions and /v1/chat/completions, whole or as a "
        "stream, whose texts are generated together for all clients; or, of one that embeds texts, "
        "/v1/embeddings."
    )
    parser = command_parser("serve_text", text, _EXAMPLES, _EXITS)
    parser.add_argument("model", metavar="DIR", help="folder of the library, or its .so")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1; 0.0.0.0 for all)",
    )
    parser.add_argument("--port", type=cli_common.count, default=8000, metavar="N", help="default: 8000")
    parser.add_argument(
        "--api-key",
        metavar="TEXT",
        help=f"what clients must know (default: ${KEY_VARIABLE}; other addresses than this machine's get a "
        "random one that is printed)",
    )
    parser.add_argument("--name", help="what clients call the model (default: the folder's name)")
    parser.add_argument(
        "--most", type=cli_common.positive, default=32, metavar="N", help="texts at once (default: 32)"
    )
    parser.add_argument("--threads", type=cli_common.positive, help="default: all cores")
    parser.add_argument(
        "--cache-tokens", type=cli_common.positive, metavar="N", help="tokens that all texts hold together"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    try:
        from hetero_tvm.serving.app import Server
        from hetero_tvm.serving.embeddings import EmbeddingServer
        from hetero_tvm.serving.listening import listen
    except ModuleNotFoundError as error:
        raise UsageError(f"the package {error.name} is not installed", hint=extra_command("serve")) from None
    from hetero_tvm.generation.embedding import EmbeddingModel
    from hetero_tvm.generation.facts import EMBEDDING
    from hetero_tvm.generation.model import LanguageModel
    from hetero_tvm.runtime.opening import load

    if options.port > 65535:
        raise UsageError(f"{options.port} is not a port", hint="1 to 65535, or 0 for any that is free")
    key = options.api_key or os.environ.get(KEY_VARIABLE)
    if key is None and not cli_common.is_loopback(options.host):
        key = secrets.token_urlsafe(24)
        print(f"API key: {key}", flush=True)
    library = load(options.model, threads=options.threads)
    name = options.name or library.path.resolve().parent.name
    if EMBEDDING in library.manifest.language:
        embedding = EmbeddingModel(library)
        _ = embedding.tokenizer  # what is missing is told now, not to the first client
        return 0 if listen(EmbeddingServer(embedding, name, key).app(), options.host, options.port) else 2
    model = LanguageModel(library, options.cache_tokens)
    if model.sources is not None:
        raise UsageError(
            f"a {model.facts.architecture} model needs a source for every text: the API has no place for it",
            hint="python -m hetero_tvm.generate DIR "
            + ("--audio FILE.wav" if model.facts.source.mels else "--source TEXT"),
        )
    app = Server(model, name, key, options.most).app()
    return 0 if listen(app, options.host, options.port) else 2


if __name__ == "__main__":
    sys.exit(main())
