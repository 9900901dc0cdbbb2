"""The HTTP service: the same answers as the library, many at once, and bad requests answered in a sentence."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvicorn

import probmetric
from probmetric.errors import ServingError
from probmetric.serving.content import Content
from probmetric.serving.gallery import Gallery
from probmetric.serving.service import Service, application, run_service
from probmetric.trust import certify


@contextlib.contextmanager
def served(model, folder, **options):
    """Address of a service in a thread."""
    app = application(Service(model, folder, **options))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def ask(address, body=None, **headers):
    """Status and JSON of a request."""
    request = urllib.request.Request(address, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, json.loads(text) if text.startswith(b"{") else text.decode()


@pytest.fixture
def stored(model, photos, tmp_path):
    return Gallery.create(model, photos[0]).save(tmp_path / "gallery")


@pytest.fixture
def address(model, stored):
    with served(model, stored) as place:
        yield place


def test_answers_are_the_librarys(address, model, stored, photos):
    path = next(iter(photos[1]))
    status, answer = ask(f"{address}/search?k=2", Path(path).read_bytes())
    (expected,) = model.search(Gallery.open(stored), [Path(path).read_bytes()], k=2)
    assert status == 200
    assert [match["path"] for match in answer["matches"]] == [match.path for match in expected.matches]
    assert answer["matches"][0]["path"] == path
    status, embedding = ask(f"{address}/embed", Path(path).read_bytes())
    assert embedding["mean"] == pytest.approx(model.embed([path]).mean[0].tolist(), abs=1e-6)
    status, about = ask(address)
    assert about["gallery"]["images"] == 24
    assert "/search" in ask(f"{address}/openapi.json")[1]["paths"]


def test_200_at_once_none_lost(address, photos):
    images = {path: Path(path).read_bytes() for path in photos[1]}
    asked = (list(images) * 9)[:200]
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda path: ask(f"{address}/search?k=1", images[path]), asked))
    assert [(status, answer["matches"][0]["path"]) for status, answer in answers] == [(200, path) for path in asked]


@pytest.mark.parametrize(
    ("place", "body", "status", "says"),
    [
        ("/search", b"no image", 400, "cannot"),
        ("/search", b"", 400, "the body is empty"),
        ("/search?k=0", None, 400, "k is 0; ask for at least 1"),
        ("/search?risk=0.05", None, 400, "no certificate for a risk of 0.05"),
        ("/search?risk=2", None, 400, "between 0 and 1"),
        ("/search?k=many", None, 422, "valid integer"),
        ("/search?riks=0.001", None, 422, "riks"),
        ("/embed?risk=0.1", None, 422, "risk"),
        ("/search?k=1&risk=0.1&k=2", None, 400, "k comes 2 times; give it once"),
        ("/images?path=a&path=b", None, 400, "path comes 2 times"),
        ("/embed?a=1&a=1", None, 400, "a comes 2 times"),
        ("/images?path=new.png", None, 400, "--writable"),
    ],
)
def test_bad_requests_are_answered_in_a_sentence(address, photos, place, body, status, says):
    body = Path(next(iter(photos[1]))).read_bytes() if body is None else body
    code, answer = ask(address + place, body)
    assert code == status
    assert says in json.dumps(answer)
    assert ask(address)[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "no host"])
def test_an_address_that_cannot_be_had_is_an_error_and_is_not_named_as_served(tmp_path, host, caplog):
    vectors, labels = probmetric.example_vectors()
    folder = Gallery.from_vectors(vectors[::4], labels[::4]).save(tmp_path / "g")
    model = argparse.Namespace(digest="", name="m", canary=None, checked_canary=None)
    with socket.create_server(("127.0.0.1", 0)) as other, caplog.at_level(logging.INFO):
        port = other.getsockname()[1]
        with pytest.raises(ServingError, match=rf"^{host}:{port} cannot be had .*choose another --port"):
            run_service(model, folder, host=host, port=port, writable=False)
    assert "answers questions" not in caplog.text


def test_a_question_without_parameters_takes_none_twice(address):
    assert ask(f"{address}/?a=1&a=1") == (400, {"error": "the parameter a comes 2 times; give it once."})


def test_pages_of_other_hosts_cannot_reach_it(address):
    assert ask(address, Host="evil.example")[0] == 400


def test_images_are_added_and_changes_of_others_are_seen(model, stored, photos):
    image = Path(next(iter(photos[1]))).read_bytes()
    with served(model, stored, writable=True) as address:
        assert ask(f"{address}/images?path=new.png&class_name=8", image) == (200, {"images": 25})
        assert len(Gallery.open(stored)) == 25
        with Gallery.changing(stored) as gallery:
            gallery.remove(["new.png"])
        assert ask(address)[1]["gallery"]["images"] == 24


@pytest.mark.parametrize(
    ("place", "says"), [("/", "is no gallery"), ("/search", "is no gallery"), ("/images", "is no")]
)
def test_a_gallery_that_has_gone_is_the_services_fault_and_none_takes_its_place(model, stored, photos, place, says):
    image = Path(next(iter(photos[1]))).read_bytes()
    with served(model, stored, writable=True) as address:
        stored.rename(stored.with_name("elsewhere"))
        query = "?path=new.png&class_name=8" if place == "/images" else ""
        status, answer = ask(f"{address}{place}{query}", None if place == "/" else image)
        assert status == 500
        assert says in answer["error"]
        assert not stored.exists()
        stored.with_name("elsewhere").rename(stored)
        assert ask(address)[1]["gallery"]["images"] == 24


def test_a_class_of_spaces_is_none(model, tmp_path, photos):
    """It was a class of its own, and the gallery counted as labelled."""
    image = Path(next(iter(photos[1]))).read_bytes()
    service = Service(model, Gallery(Content.empty(model.digest)).save(tmp_path / "g"), writable=True)
    service.add(image, "a.png", " ")
    service.add(image, "b.png", " 8 ")
    assert service.gallery().class_names == ["", "8"]


def test_a_certificate_made_meanwhile_is_seen(model, stored):
    with served(model, stored) as address:
        assert ask(address)[1]["certificates"] == []
        gallery = Gallery.open(stored)
        facts = {"gallery": gallery.digest, "weights": gallery.model}
        gallery.keep(certify(range(100), [True] * 100, risk=0.2, **facts))
        gallery.save()
        assert ask(address)[1]["certificates"] == [{"risk": 0.2, "confidence": 0.9}]


def test_p_right_learnt_meanwhile_is_seen(tmp_path):
    vectors, labels = probmetric.example_vectors()
    folder = Gallery.from_vectors(vectors[::4], labels[::4]).save(tmp_path / "g")
    service = Service(argparse.Namespace(digest="", name="m", canary=None, checked_canary=None), folder)
    assert service.gallery().p_right is None
    with Gallery.changing(folder) as gallery:
        assert gallery.trust.p_right is not None  # `probmetric index MODEL g`
    assert service.gallery().p_right == gallery.p_right


def test_who_stores_a_gallery_keeps_what_another_process_has_learnt_of_it(tmp_path):
    vectors, labels = probmetric.example_vectors()
    folder = Gallery.from_vectors(vectors[::4], labels[::4]).save(tmp_path / "g")
    before = Gallery.open(folder)
    with Gallery.changing(folder) as gallery:
        assert gallery.trust.p_right is not None
    before.save()
    assert Gallery.open(folder).p_right == gallery.p_right
