"""The model card: README.md of an exported model, with the front matter that Hugging Face reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PIPELINES = {"audio": "audio-classification", "image": "image-classification"}


def model_card(about: Mapping[str, Any]) -> str:
    """Markdown from the content of model.json."""
    parts = [_front_matter(about), _opening(about), _accuracy(about), _data(about), _use(about), _limits(about)]
    return "\n\n".join(parts) + "\n"


def _front_matter(about: Mapping[str, Any]) -> str:
    """YAML. Strings are written as JSON, which is valid YAML for any name."""
    kind = about["project"]["kind"]
    lines = ["---", "library_name: onnx", f"pipeline_tag: {PIPELINES[kind]}", "tags:"]
    lines += [f"- {tag}" for tag in ("winnow", "active-learning", "semi-supervised", PIPELINES[kind])]
    accuracy = about["test_accuracy"]
    if accuracy is not None:
        name = json.dumps(about["project"]["name"], ensure_ascii=False)
        lines += [
            "model-index:", f"- name: {name}", "  results:", "  - task:", f"      type: {PIPELINES[kind]}",
            "    dataset:", f"      name: {name}", "      type: private", "      split: test", "    metrics:",
            "    - type: accuracy", f"      value: {accuracy['value']:.4f}",
        ]  # fmt: skip
    return "\n".join([*lines, "---"])


def _opening(about: Mapping[str, Any]) -> str:
    kind, network, made = about["project"]["kind"], about["network"], about["round"]
    items = "audio clips" if kind == "audio" else "pictures"
    named = f' "{escaped(made["name"])}"' if made["name"] else ""
    title = escaped(about["project"]["name"])
    encoder = about.get("encoder")
    how = f"a softmax head on the encoder `{encoder['settings']['name']}`" if encoder else None
    training = how or f"`{about['settings']['training']['method']}`"
    return (
        f"# {title}\n\nClassifies {items} into {len(about['classes'])} classes. Winnow {about['winnow']} trained it in "
        f"round {made['number']}{named} of the project {title}, finished {made['finished_at']}.\n\n"
        f"- Network: `{network['name']}`, {network['n_parameters']:,} parameters\n"
        f"- Training: {training}, seed {about['seed']}\n"
        f"- Calibration: temperature {about['calibration']['temperature']:.3f}"
    )


def _accuracy(about: Mapping[str, Any]) -> str:
    accuracy = about["test_accuracy"]
    if accuracy is None:
        return "## Accuracy\n\nNot measured: the project had no test items in this round."
    low, high = accuracy["interval"]
    return (
        f"## Accuracy\n\n**{100 * accuracy['value']:.1f} %** on {accuracy['n']:,} test items; 95 % interval "
        f"{100 * low:.1f} to {100 * high:.1f} % ({accuracy['interval_method']}).\n\n{accuracy['how']}\n\n"
        "![Confusion matrix of the test items](confusion.png)"
    )


def _data(about: Mapping[str, Any]) -> str:
    data = about["data"]
    rows = [f"| {escaped(one['name'])} | {data['labels'].get(one['name'], 0):,} |" for one in about["classes"]]
    return (
        f"## Data\n\n{data['n_labeled']:,} labeled items and {data['n_unlabeled']:,} unlabeled items of the pool.\n\n"
        "| class | labels |\n|---|---|\n" + "\n".join(rows)
    )


def _use(about: Mapping[str, Any]) -> str:
    packages = "numpy onnxruntime soundfile soxr" if about["project"]["kind"] == "audio" else "numpy onnxruntime Pillow"
    use = f"## Use\n\n```\npip install {packages}\npython predict.py FILE_OR_FOLDER\n```\n\n"
    encoder = about.get("encoder")
    if encoder:
        name, is_there = escaped(encoder["settings"]["name"]), encoder["included"]
        where = "It is in this folder." if is_there else "It is not in this folder: copy its `encoder.onnx` here."
        return (
            f"{use}The encoder `{name}` (license {escaped(encoder['license'])}, identity `{encoder['identity'][:16]}`) "
            f"turns a file into features, and `head.onnx` turns these into probabilities. {where}"
        )
    return (
        f"{use}"
        "`model.onnx` includes the preprocessing after decoding; `preprocess.json` describes every step, `model.json` "
        "holds classes, settings and hashes, and `model.safetensors` holds the weights."
    )


def _limits(about: Mapping[str, Any]) -> str:
    return (
        "## Limits\n\nThe model always predicts one of its classes, even for items that belong to none of them. "
        "The accuracy applies to items that are drawn in the same way as the test items."
    )


def escaped(text: str) -> str:
    """The text on one line, escaped for Markdown and HTML."""
    plain = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>()#+-!|~$&" else letter for letter in plain)
