"""Run directories that somebody sent: of other versions, damaged, or made to do harm."""

import json
import os
import resource
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from manigraph.build import load_dataset
from manigraph.errors import UserError
from manigraph.inference.predictor import Predictor
from manigraph.runs import FORMAT_VERSION, RunDirectory

FORMAT_2 = Path(__file__).parent / "format_2"
"""A run on digits of format 2.0 with all that predicting needs; answers.json has its logits."""

Value = Any


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(FORMAT_2, tmp_path / "run")


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Four gigabytes more than there are now: whoever asks for more gets a MemoryError.

    Address space, that is, of which every thread of a busy process takes its share.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 32), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def change(file: Path, *keys: str, to: Value) -> None:
    """Another value in a JSON file; `...` removes it."""
    values = inner = json.loads(file.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    if to is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = to
    file.write_text(json.dumps(values))


def refusal(run: Path) -> str:
    """The one sentence."""
    with pytest.raises(UserError) as caught:
        Predictor.load(run)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 600
    return message


# Versions


def test_a_run_of_format_2_predicts_what_it_did() -> None:
    predictor, known = Predictor.load(FORMAT_2), json.loads((FORMAT_2 / "answers.json").read_text())
    assert json.loads((FORMAT_2 / "provenance.json").read_text())["format"] == 2
    assert "white" not in json.loads((FORMAT_2 / "data.json").read_text())
    assert predictor.trained.white == 16
    images = load_dataset(predictor.trained.config.data).images[torch.tensor(known["test_images"])]
    torch.testing.assert_close(predictor(images).logits, torch.tensor(known["logits"]), atol=1e-3, rtol=0)


def test_other_data_sets_of_format_2_were_stored_up_to_255(run: Path) -> None:
    change(run / "data.json", "name", to="photos")
    assert Predictor.load(run).trained.white == 255


@pytest.mark.parametrize("version", [2, "2.0", "2.1", FORMAT_VERSION, "2.9"])
def test_every_minor_version_is_read(run: Path, version: Value) -> None:
    change(run / "provenance.json", "format", to=version)
    change(run / "data.json", "of_the_future", to=[1])
    assert len(Predictor.load(run).class_names) == 10


@pytest.mark.parametrize(
    ("version", "way_out"),
    [
        ("3.0", "was written in run format 3.0, this version reads 2.x: use manigraph 0.1.0 or a later one"),
        (1, "was written in run format 1.0, this version reads 2.x: use manigraph 0.1.0"),
    ],
)
def test_another_major_version_is_refused_and_the_way_out_named(
    run: Path, version: Value, way_out: str
) -> None:
    change(run / "provenance.json", "format", to=version)
    assert refusal(run) == f"'{run}' {way_out}"


def test_settings_of_a_newer_version_name_it(run: Path) -> None:
    change(run / "provenance.json", "format", to="2.9")
    change(run / "provenance.json", "packages", to={"manigraph": "0.7.0"})
    change(run / "config.json", "data", "of_the_future", to=1)
    assert refusal(run).endswith("; it was written by a newer version: use manigraph 0.7.0")


@pytest.mark.parametrize("version", [..., None, True, 2.0, "2", "two", "2.1.0", [2], -2, 10**30])
def test_what_is_no_version_is_refused(run: Path, version: Value) -> None:
    change(run / "provenance.json", "format", to=version)
    assert "provenance.json' is damaged: it does not say the format of the run" in refusal(run)


def test_new_runs_say_their_version(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "run")
    assert run.read_json("provenance.json")["format"] == FORMAT_VERSION == "2.2"


# JSON


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("algorithm",), "no_such"),
        (("algorithm",), ["supervised"]),
        (("algorithm",), "supervised"),
        (("algorithm",), "../../etc/passwd"),
        (("seed",), -1),
        (("seed",), "--help"),
        (("backbone", "name"), "no_such"),
        (("backbone", "width"), 1e6),
        (("backbone", "width"), 1e300),
        (("backbone", "width"), float("nan")),
        (("backbone", "width"), float("inf")),
        (("backbone", "width"), -1),
        (("backbone",), []),
        (("method", "prototypes_per_class"), 10**9),
        (("method", "prototypes_per_class"), -3),
        (("method", "embedding_size"), 10**12),
        (("method", "hidden_size"), -5),
        (("method", "num_heads"), 0),
        (("method",), None),
        (("help",), True),
        (("unknown",), {"a": {"b": 1}}),
        (("data", "labels"), "many"),
        (("preprocessing", "mean"), [0.5] * 50_000),
    ],
)
@pytest.mark.usefixtures("little_memory")
def test_settings_that_do_not_fit_are_one_sentence(
    run: Path, keys: tuple[str, ...], value: Value, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run / "config.json", *keys, to=value)
    assert str(run) in refusal(run)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("little_memory")
def test_a_network_of_endless_parts_is_not_built(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config |= {"algorithm": "deep_cotraining", "method": {"num_views": 10**9}}
    (run / "config.json").write_text(json.dumps(config))
    assert "config.json describes a larger network" in refusal(run)


@pytest.mark.usefixtures("little_memory")
def test_memories_of_training_take_no_memory(run: Path) -> None:
    change(run / "config.json", "method", "balance_memory", to=10**12)
    change(run / "config.json", "method", "balance_weight", to=1.0)
    assert len(Predictor.load(run).class_names) == 10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("class_names", ...),
        ("class_names", "0123456789"),
        ("class_names", list(range(10))),
        ("class_names", [["0"]] * 10),
        ("class_names", []),
        ("class_names", ["a", "b"]),
        ("class_names", [str(number) for number in range(1_000_000)]),
        ("input_shape", ...),
        ("input_shape", [1, 8, -8]),
        ("input_shape", [1, 8, 8.0]),
        ("input_shape", [1, 8, "8"]),
        ("input_shape", [True, 8, 8]),
        ("input_shape", [1, 8]),
        ("input_shape", [64]),
        ("input_shape", [1, 16, 16]),
        ("input_shape", [1, 10**9, 10**9]),
        ("input_shape", [3, 8, 8]),
        ("image_shape", [3, 10**6, 10**6]),
        ("image_shape", "large"),
        ("white", 0),
        ("white", "bright"),
        ("white", float("nan")),
        ("white", 10**400),
    ],
)
@pytest.mark.usefixtures("little_memory")
def test_data_that_does_not_fit_is_one_sentence(run: Path, key: str, value: Value) -> None:
    change(run / "data.json", key, to=value)
    assert str(run) in refusal(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", ...),
        ("kind", "pickle"),
        ("kind", "zca"),
        ("mean", 3),
        ("mean", [float("nan")]),
        ("mean", [0.5] * 100_000),
        ("mean", ["x"]),
        ("std", [0.0]),
        ("std", [-1]),
        ("std", []),
    ],
)
def test_preprocessing_that_does_not_fit_is_one_sentence(run: Path, key: str, value: Value) -> None:
    change(run / "preprocessing.json", key, to=value)
    assert "preprocessing.json' is damaged" in refusal(run)


JSON_FILES = ("config.json", "data.json", "preprocessing.json", "provenance.json")


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        b"null",
        b"{}",
        b'{"a": "' + b"x" * (17 << 20) + b'"}',
    ],
    ids=["empty", "deep-list", "deep-object", "no-text", "null", "nothing", "large"],
)
def test_what_is_no_proper_json_is_one_sentence(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    assert str(run) in refusal(run)


# Files that are none


def to_device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def to_itself(file: Path) -> None:
    file.symlink_to(file.name)


@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors"])
@pytest.mark.parametrize("kind", [os.mkfifo, Path.mkdir, to_device, to_itself])
def test_pipes_folders_devices_and_endless_links_are_not_read(
    run: Path, name: str, kind: Callable[[Path], None]
) -> None:
    (run / name).unlink()
    kind(run / name)
    assert str(run) in refusal(run)


def test_a_pipe_in_the_place_of_the_lock_is_not_waited_for(run: Path) -> None:
    change(run / "status.json", "state", to="running")
    os.mkfifo(run / ".lock")
    assert RunDirectory.open(run).status().state == "interrupted"


def test_links_to_files_are_followed(run: Path, tmp_path: Path) -> None:
    (run / "model.safetensors").rename(tmp_path / "elsewhere")
    (run / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert len(Predictor.load(run).class_names) == 10


# Weights


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model.safetensors")


def stored(run: Path, weights: dict[str, torch.Tensor]) -> None:
    safetensors.torch.save_file(weights, run / "model.safetensors")


NAME = "model.linear.weight"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda t: t.double(), "'model.linear.weight' is F64 (10, 32) instead of F32 (10, 32)"),
        (lambda t: t.half(), "F16"),
        (lambda t: t.T.contiguous(), "(32, 10) instead of"),
        (lambda t: t[:0], "(0, 32) instead of"),
        (lambda t: t * float("nan"), "'model.linear.weight' holds numbers that are not finite"),
        (lambda t: t / 0, "not finite"),
    ],
)
def test_wrong_weights_are_named(
    run: Path, make: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    weights = weights_of(run)
    stored(run, weights | {NAME: make(weights[NAME])})
    message = refusal(run)
    assert "does not hold the weights of this run" in message
    assert reason in message


def test_missing_and_foreign_weights_are_named(run: Path) -> None:
    weights = weights_of(run)
    stored(run, {name: tensor for name, tensor in weights.items() if name != NAME})
    assert refusal(run).endswith("'model.linear.weight' is missing")
    stored(run, weights | {"../../elsewhere": torch.zeros(1)})
    assert refusal(run).endswith("'../../elsewhere' does not belong there")


def with_header(run: Path, header: bytes, length: int | None = None, size: int = 0) -> None:
    path = run / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    if size:
        os.truncate(path, size)  # a hole, which takes no room on the disk


@pytest.mark.parametrize(
    ("header", "length", "size"),
    [
        (b"{}", 1 << 63, 0),
        (b"{}", 1 << 40, 0),
        (b" " * 64, 50 << 20, 60 << 20),
        (b"{}", 1, 0),
        (b"", 0, 0),
        (b"[]", None, 0),
        (b"{" * 5000, None, 0),
        (b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', None, 0),
        (b'{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}', None, 100),
        (b'{"a":{"dtype":"EVIL","shape":[4],"data_offsets":[0,16]}}', None, 100),
        (b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}}', None, 100),
        (b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}', None, 100),
    ],
)
@pytest.mark.usefixtures("little_memory")
def test_headers_that_lie_are_one_sentence(run: Path, header: bytes, length: int | None, size: int) -> None:
    with_header(run, header, length, size)
    assert "does not hold the weights of this run" in refusal(run)


@pytest.mark.parametrize("K", [10**4, 10**10], ids=["many prototypes", "large file"])
def test_a_huge_model_of_nothing_is_not_read(run: Path, K: int) -> None:
    """All sizes fit one another: the file is a hole, or of its little would be made too many prototypes."""
    classes, size = [str(number) for number in range(100_000)], 0
    change(run / "data.json", "class_names", to=classes)
    change(run / "config.json", "method", "prototypes_per_class", to=K)
    header: dict[str, Any] = {}
    for name, tensor in weights_of(run).items():
        shape = list(tensor.shape)
        if name.endswith("class_embedding") or name.startswith("model.linear"):
            shape[0] = len(classes)
        if name.endswith("instance_embedding"):
            shape[0] = K
        length = tensor.itemsize * torch.empty(shape, device="meta").numel()
        header[name] = {
            "dtype": {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}[tensor.dtype],
            "shape": shape,
            "data_offsets": [size, size + length],
        }
        size += length
    content = json.dumps(header).encode()
    with_header(run, content, size=8 + len(content) + size)
    assert "this machine has" in refusal(run)


@given(
    st.sampled_from([*JSON_FILES, "model.safetensors"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.floats(0, 1),
)
def test_whatever_bytes_change_it_loads_or_is_one_sentence(
    name: str, changes: list[tuple[float, int]], kept: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = shutil.copytree(FORMAT_2, Path(folder) / "run")
        content = bytearray((run / name).read_bytes())
        head = min(len(content), 4000)  # a header, and not always the numbers after it
        for place, byte in changes:
            content[int(place * head)] = byte
        (run / name).write_bytes(content if kept > 0.5 else content[: int(2 * kept * len(content))])
        try:
            Predictor.load(run)(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
        except UserError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017


# Every method is read without memory of its own, and predicts as before


def test_weights_do_not_change_with_their_file(run: Path) -> None:
    """They are not mapped from it."""
    predictor = Predictor.load(run)
    before = predictor(torch.full((1, 1, 8, 8), 7, dtype=torch.uint8)).logits
    with (run / "model.safetensors").open("r+b") as file:
        file.write(bytes((run / "model.safetensors").stat().st_size))
    assert torch.equal(predictor(torch.full((1, 1, 8, 8), 7, dtype=torch.uint8)).logits, before)
