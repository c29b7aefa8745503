"""The texts of layers and builders, in a terminal and in a notebook."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import partial
from typing import Any

import dynet_cy as dy
from dynet_cy import nn


class Net(nn.Layer):
    def __init__(self, words: dict[str, int], model: Any) -> None:
        super().__init__(model, (words, "x" * 99))
        self.embed = nn.Embedding(10, 6, self.collection)
        self.reader = dy.BiRNNBuilder(1, 6, 8, self.collection, partial(dy.GRUBuilder, reset_after=True))
        self.layers = [nn.Linear(8, 8, self.collection) for _ in range(2)]
        self.scale = self.collection.add_parameters((8, 2))


WANTED = """<Net (dict of 200, str of 99)
  embed: Embedding (10, 6, None, False)
  reader: BiRNNBuilder (1, 6, 8, GRUBuilder, reset_after=True)
  layers.0: Linear (8, 8, True)
  layers.1: Linear (8, 8, True)
  scale: Parameters (8, 2)>"""


def test_layers_show_their_parts_and_not_whole_vocabularies() -> None:
    net = Net({f"word {k}": k for k in range(200)}, dy.Model())
    assert repr(net) == WANTED
    assert repr(net.eval()).startswith("<Net (dict of 200, str of 99), evaluation mode\n  embed: ")
    assert repr(net.layers[0]) == "<Linear (8, 8, True), evaluation mode>"
    assert repr(dy.LSTMBuilder(2, 3, 4, dy.Model())) == "<VanillaLSTMBuilder (2, 3, 4, False, 1.0)>"
    assert repr(dy.BiRNNBuilder(1, 2, 4, dy.Model(), dy.LSTMBuilder)) == "<BiRNNBuilder (1, 2, 4, VanillaLSTMBuilder)>"


def test_layers_in_notebooks() -> None:
    net = Net({}, dy.Model())
    page = ET.fromstring(f"<div>{net._repr_html_()}</div>")
    assert "layers.1: Linear (8, 8, True)" in "".join(page.find("pre").itertext())
    rows = [["".join(cell.itertext()) for cell in row] for row in page.find("table").iter("tr")]
    assert ["layers/0/W", "8 x 8", "64", "Parameters"] in rows


def test_profiles_in_notebooks() -> None:
    net = nn.Linear(2, 2, dy.Model())
    with dy.profiling.measure(lines=True) as profile:
        net([1.0, 2.0]).value()
    assert repr(profile).startswith("<Profile of 1 operations, 1 nodes in 1 calls, ")
    page = ET.fromstring(f"<div>{profile._repr_html_()}</div>")
    titles = [title.text for title in page.iter("h2")]
    assert titles[:2] == ["Scopes", "All operations"]
    assert any("affine_transform" in "".join(cell.itertext()) for cell in page.iter("td"))
