"""Answer HTTP requests with a published model, by ONNX Runtime.

    python serve.py build/train/published --port 8080
    curl --data-binary @picture.jpg "http://localhost:8080/predict?top=3"

The folder holds model.onnx and config.json, as `trainyard export` leaves it. Needed are Python 3.11, onnxruntime, numpy
and pillow; no line of trainyard. Images are prepared as in a run's validation.
"""

import argparse
import io
import json
import signal
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import onnxruntime
from PIL import Image, UnidentifiedImageError

MOST_BYTES, MOST_PIXELS = 20_000_000, 50_000_000  # of a request, and of the image in it
QUIET = 30  # seconds that a client may send nothing


class RefusedError(Exception):
    """A request that cannot be answered: the HTTP status, and why."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


class Classifier:
    """A model, the names of its classes, and how its images are prepared."""

    def __init__(self, folder: Path):
        described = json.loads((folder / "config.json").read_text())
        images, own = described["pretrained_cfg"], described["trainyard"]
        self.names = own["names"]
        self.size, self.shorter = images["input_size"][1], own["resize"]
        self.filter = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}[images["interpolation"]]
        self.mean, self.std = (np.float32(images[name]).reshape(3, 1, 1) for name in ("mean", "std"))
        here = onnxruntime.get_available_providers()
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", providers=here)

    def prepare(self, content: bytes) -> np.ndarray:
        """Return an image as the model takes it: float32 (3, size, size); raises RefusedError for what is none."""
        try:
            image = Image.open(io.BytesIO(content), formats=["JPEG", "PNG"])
            if image.width * image.height > MOST_PIXELS:
                raise RefusedError(413, f"the image has more than {MOST_PIXELS:,} pixels")
            if image.mode.startswith("I;16"):  # a PNG of 16 bits
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            image = image.convert("RGB")
        except UnidentifiedImageError:
            raise RefusedError(400, "the body is neither a JPEG nor a PNG") from None
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise RefusedError(400, f"the body is no JPEG or PNG that can be decoded: {error}") from error
        scale = self.shorter / min(image.size)
        width, height = (max(self.shorter, round(side * scale)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        image = image.resize((width, height), self.filter).crop((left, top, left + self.size, top + self.size))
        return (np.float32(image).transpose(2, 0, 1) / 255 - self.mean) / self.std

    def likeliest(self, content: bytes, top: int) -> list[dict]:
        """Return the likeliest classes of an image, in the form of predictions.jsonl; raises RefusedError."""
        (logits,) = self.session.run(["logits"], {"pictures": self.prepare(content)[None]})
        chances = np.exp(logits[0] - logits[0].max())
        chances /= chances.sum()
        order = np.argsort(-chances, kind="stable")[:top]
        return [
            {"class": self.names[index], "index": int(index), "probability": round(float(chances[index]), 6)}
            for index in order
        ]


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    timeout = QUIET

    def __init__(self, classifier: Classifier, *given):
        self.classifier = classifier
        super().__init__(*given)

    def do_GET(self):
        """Tell whether the server is ready."""
        if self.path == "/healthz":
            self.answer(200, {"status": "ready", "classes": len(self.classifier.names)})
        else:
            self.answer(404, {"error": "there are GET /healthz and POST /predict"})

    def do_POST(self):
        """Classify the image that is the body."""
        try:
            content, address = self.body(), urlsplit(self.path)
            if address.path != "/predict":
                raise RefusedError(404, "there are GET /healthz and POST /predict")
            top = parse_qs(address.query).get("top", ["5"])[-1]
            if not top.isdecimal() or int(top) < 1:
                raise RefusedError(400, f"top={top}: write a whole number of 1 or more")
            self.answer(200, {"top": self.classifier.likeliest(content, int(top))})
        except RefusedError as error:
            self.answer(error.status, {"error": str(error)})

    def body(self) -> bytes:
        """Return the body of the request; raises RefusedError where its length is not known, or too large."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(411, "the request has no Content-Length")
        if int(length) > MOST_BYTES:
            raise RefusedError(413, f"the body has {int(length):,} bytes; {MOST_BYTES:,} are the most")
        return self.rfile.read(int(length))

    def answer(self, status: int, what: dict) -> None:
        """Send JSON, and end the connection."""
        content = json.dumps(what).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")  # no idle connection holds up the end of the server
        self.close_connection = True
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    """A thread for each request; when it closes, it waits for the answers that are under way."""

    daemon_threads = False


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; answers that are under way are finished."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path, help="folder with model.onnx and config.json")
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    options.add_argument("--port", type=int, default=8080, help="port (%(default)s)")
    given = options.parse_args()
    missing = [name for name in ("model.onnx", "config.json") if not (given.folder / name).is_file()]
    if missing:
        remedy = f"`trainyard export --model {given.folder} --to onnx`"
        sys.exit(f"{given.folder} lacks {' and '.join(missing)}: run {remedy}")
    with Server((given.host, given.port), partial(Handler, Classifier(given.folder))) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        print(f"ready on http://{given.host}:{server.server_port}", flush=True)
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
