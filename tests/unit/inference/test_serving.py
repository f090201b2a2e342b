"""docs/serving.md: the server of examples/serving answers what `trainyard predict` says, and refuses the rest."""

import http.client
import io
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import documents, patience, ports
from tests.documents import ROOT
from tests.fakes import loopback
from trainyard.inference import predict

pytestmark = [pytest.mark.takes(60), pytest.mark.ranks(1)]
TOLERANCE = 0.003  # of a probability: Pillow's pixels differ by some units of 255; 0.0007 was seen


@pytest.fixture(scope="module")
def images(fashion_pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small real images, and of larger ones of each kind that is taken."""
    folder = tmp_path_factory.mktemp("served") / "images"
    folder.mkdir()
    for number, path in enumerate(sorted(fashion_pictures.rglob("*.*"))[::40]):
        (folder / f"{number}{path.suffix}").write_bytes(path.read_bytes())
    base = Image.open(sorted(fashion_pictures.rglob("*.*"))[7]).convert("RGB")
    base.resize((301, 200), Image.BICUBIC).save(folder / "wide.jpg", quality=90)
    base.resize((80, 333), Image.BICUBIC).convert("CMYK").save(folder / "cmyk.jpg", quality=90)
    base.resize((90, 90)).convert("P").save(folder / "palette.png")
    base.resize((90, 70)).convert("RGBA").save(folder / "alpha.png")
    Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257).save(folder / "16-bits.png")
    return folder


@pytest.fixture(scope="module")
def address(fashion_run: Path) -> Iterator[str]:
    """The server, started by the page's own line."""
    port = ports.free()
    line = documents.text("serving.md", "python examples/serving/serve.py", {"8080": str(port)})
    process = documents.start(line.strip(), ROOT, RUN=fashion_run)
    assert process.stdout
    assert "ready on" in process.stdout.readline()
    yield f"127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    said, _ = patience.communicate(process)
    assert process.returncode == 0, said
    assert "Traceback" not in said


def asked(
    address: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(address)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def predicted(fashion_run: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `trainyard predict` says of the images."""
    out = tmp_path_factory.mktemp("predicted")
    assert predict.main(["--model", str(fashion_run), "--data", str(images), "--out", str(out), "--top", "10"]) == 0
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == len(list(images.iterdir())) > 8
    return lines


def test_the_server_says_what_predict_says(address: str, predicted: list[dict[str, Any]], images: Path) -> None:
    for line in predicted:
        status, found = asked(address, "POST", "/predict?top=10", (images / line["name"]).read_bytes())
        assert status == 200, found
        ours = {one["class"]: one["probability"] for one in line["top"]}
        assert {one["class"]: one["probability"] for one in found["top"]} == pytest.approx(ours, abs=TOLERANCE), line[
            "name"
        ]
        first, second = line["top"][:2]
        if first["probability"] - second["probability"] > 2 * TOLERANCE:
            assert (found["top"][0]["class"], found["top"][0]["index"]) == (first["class"], first["index"])
    assert len({line["top"][0]["class"] for line in predicted}) > 1, "the model tells classes apart"


def test_the_pages_request_is_answered(address: str, images: Path) -> None:
    line = documents.text("serving.md", "curl", {"localhost:8080": address, "picture.jpg": "wide.jpg"})
    done = subprocess.run(["bash", "-euc", line], cwd=images, capture_output=True, text=True, check=True)
    ready, found = (json.loads(one) for one in done.stdout.splitlines())
    assert ready == {"status": "ready", "classes": 10}
    assert len(found["top"]) == 3


def test_what_is_no_image_is_refused_in_words(address: str, images: Path) -> None:
    sound = (images / "wide.jpg").read_bytes()
    gif = io.BytesIO()
    Image.new("RGB", (9, 9)).save(gif, "GIF")
    large = io.BytesIO()
    Image.new("1", (10_000, 6_000)).save(large, "PNG")
    for status, said, path, body in (
        (400, "the body is neither a JPEG nor a PNG", "/predict", b"words"),
        (400, "the body is neither a JPEG nor a PNG", "/predict", b""),
        (400, "no JPEG or PNG that can be decoded", "/predict", sound[: len(sound) // 2]),
        (400, "the body is neither a JPEG nor a PNG", "/predict", gif.getvalue()),
        (413, "more than 50,000,000 pixels", "/predict", large.getvalue()),
        (400, "top=0: write a whole number of 1 or more", "/predict?top=0", sound),
        (404, "POST /predict", "/other", sound),
    ):
        found, answer = asked(address, "POST", path, body)
        assert (found, said in answer["error"]) == (status, True), answer
    assert asked(address, "GET", "/predict")[0] == 404
    assert asked(address, "POST", "/predict", **{"Content-Length": "20000001"})[0] == 413
    assert asked(address, "POST", "/predict", **{"Transfer-Encoding": "chunked"})[0] == 411
    assert asked(address, "POST", "/predict", sound)[0] == 200, "it goes on"


class Infers(BaseHTTPRequestHandler):
    """Answers requests of the Open Inference Protocol for the model `classifier`, as Triton does."""

    session: Any  # of ONNX Runtime

    def do_POST(self) -> None:
        assert self.path == "/v2/models/classifier/infer"
        (given,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        assert given["datatype"] == "FP32"
        pixels = np.array(given["data"], np.float32).reshape(given["shape"])
        (logits,) = self.session.run(["logits"], {given["name"]: pixels})
        one = {"name": "logits", "datatype": "FP32", "shape": logits.shape, "data": logits.ravel().tolist()}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"model_name": "classifier", "outputs": [one]}).encode())


def test_the_pages_client_says_what_predict_says(
    predicted: list[dict[str, Any]], fashion_run: Path, images: Path, tmp_path: Path
) -> None:
    surest = max(predicted, key=lambda line: float(line["top"][0]["probability"]))
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.S)
    (tmp_path / "client.py").write_text(code)
    (tmp_path / "serve.py").symlink_to(ROOT / "examples/serving/serve.py")
    (tmp_path / "published").symlink_to(fashion_run / "published")
    import onnxruntime

    Infers.session = onnxruntime.InferenceSession(fashion_run / "published" / "model.onnx")
    with loopback.serving(Infers) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        done = patience.run(
            [str(ROOT / ".venv/bin/python"), "client.py", address, str(images / surest["name"])], cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == surest["top"][0]["class"]


def test_a_folder_without_onnx_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    script = [str(ROOT / ".venv/bin/python"), str(ROOT / "examples/serving/serve.py"), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"lacks model.onnx: run `trainyard export --model {tmp_path} --to onnx`" in done.stderr


def test_the_pages_configuration_of_triton_names_what_the_model_has(fashion_run: Path) -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    import onnx

    graph = onnx.load(fashion_run / "published" / "model.onnx").graph
    for kind, value in (("input", graph.input[0]), ("output", graph.output[0])):
        form = kind + r' \[\{ name: "(\w+)", data_type: TYPE_FP32, dims: \[(.+)\] \}\]'
        ((name, dims),) = re.findall(f"^{form}$", page, re.M)
        batch, *rest = value.type.tensor_type.shape.dim
        assert (name, len(dims.split(", "))) == (value.name, len(rest))
        assert batch.dim_param, "any number of images"
