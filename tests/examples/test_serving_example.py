"""The web service of examples/serving, under load from its client over the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_data import write_treebank
from programs import EXAMPLES, output, refused

import dynet_cy as dy

pytest.importorskip("starlette", reason="the web service needs the extra [serve]")
pytest.importorskip("uvicorn", reason="the web service needs the extra [serve]")

pytestmark = pytest.mark.fibers
SIZES = ["--word-dim", 8, "--tag-dim", 4, "--hidden", 8, "--batch", 8, "--learning-rate", 0.02]
MODEL = Path("runs/service.safetensors")


def train(folder: Path, seed: int) -> str:
    data = write_treebank(folder / "train.conllu.gz", 60, 1)
    return output("serving/service.py", "train", "--train", data, *SIZES, "--epochs", 8, "--seed", seed, cwd=folder)


class Service:
    def __init__(self, folder: Path, *options: object) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, str(EXAMPLES / "serving" / "service.py"), "--port", self.port, *options]
        self.process = subprocess.Popen(list(map(str, command)), cwd=folder, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 600
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, self.process.communicate()[1]
                assert time.monotonic() < end
                time.sleep(0.05)

    def ask(self, path: str, text: str | None = None) -> tuple[int, dict]:
        data = None if text is None else text.encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", data, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=600)
        assert "Traceback" not in errors, errors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    assert "best dev accuracy 100.00%" in train(folder, 1)
    return folder


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    service = Service(folder)
    yield service
    service.end()


def load(service: Service, folder: Path, *options: object) -> str:
    command = [sys.executable, str(EXAMPLES / "serving" / "client.py"), "--port", service.port, *options]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tags(service: Service) -> None:
    status, found = service.ask("analyse", "every dog likes the çiçek .")
    assert status == 200
    assert found["words"] == ["every", "dog", "likes", "the", "çiçek", "."]
    assert found["tags"] == ["DET", "NOUN", "VERB", "DET", "NOUN", "PUNCT"]


def test_bad_requests(service: Service) -> None:
    assert service.ask("analyse", " ") == (400, {"error": "expected 1 to 200 words, not 0"})
    assert service.ask("analyse", "a " * 201) == (400, {"error": "expected 1 to 200 words, not 201"})
    assert service.ask("statistics")[1]["finished"] == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=600) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert 'dynet_cy_server_calls_total{outcome="finished"} 0\n' in answer.read().decode()


def test_many_clients(service: Service, folder: Path) -> None:
    shown, counts = load(service, folder, "--clients", 32, "--seconds", 1, "--show").splitlines()
    assert set(json.loads(shown)) == {"words", "tags"}
    assert counts.startswith("200: ")
    assert "other answer" not in counts
    counts = load(service, folder, "--clients", 8, "--rate", 50, "--seconds", 1)
    assert counts.startswith("200: ")
    _, found = service.ask("statistics")
    assert found["finished"] > 50
    assert found["waiting"] == found["in_flight"] == found["failed"] == 0


@pytest.mark.slow
def test_a_model_is_replaced_while_requests_come(folder: Path, tmp_path: Path) -> None:
    train(tmp_path, 2)
    shutil.copytree(folder, tmp_path / "served")
    service = Service(tmp_path / "served")
    try:
        command = [sys.executable, str(EXAMPLES / "serving" / "client.py"), "--port", str(service.port)]
        client = subprocess.Popen([*command, "--seconds", "3"], stdout=subprocess.PIPE, text=True)
        for source in (tmp_path, folder, tmp_path):
            time.sleep(0.5)
            shutil.copy(source / MODEL, tmp_path / "served" / "new")
            os.replace(tmp_path / "served" / "new", tmp_path / "served" / MODEL)
            assert service.ask("reload", "") == (200, {})
        counts = client.communicate(timeout=600)[0].partition(";")[0]
        assert set(re.findall(r"(\S+): ", counts)) <= {"200", "before"}, "none was dropped"
        (tmp_path / "served" / MODEL).write_text("{")
        status, found = service.ask("reload", "")
        assert status == 500
        assert "error" in found
        assert service.ask("analyse", "the dog")[0] == 200
    finally:
        service.end()


def test_overload_is_refused(folder: Path) -> None:
    service = Service(folder, "--queue", 1, "--width", 1)
    try:
        counts = load(service, folder, "--clients", 32, "--seconds", 1)
        assert "503: " in counts
        assert "200: " in counts
    finally:
        service.end()


def test_without_a_model(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "serving" / "service.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("service.py: ")
    assert MODEL.as_posix() in done.stderr


def test_bad_files(folder: Path) -> None:
    treebank = (folder / "bad.conllu").as_posix()
    Path(treebank).write_text("1\tthe\tthe\tDET\n", encoding="utf-8")
    dy.save_safetensors(folder / "other", dy.ParameterCollection(), extra={"words": []})
    cases = [
        (["train", "--train", treebank], "bad.conllu, line 1: 4 columns separated by tabs, CoNLL-U has 10"),
        (["--model", "other"], "other: the model of another program: it has no 'tags'"),
    ]
    for options, message in cases:
        said = refused("serving/service.py", *options, cwd=folder)
        assert said.startswith("service.py: ")
        assert message in said


def test_client_without_a_service(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "serving" / "client.py"), "--port", "9", "--seconds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("client.py: ")
