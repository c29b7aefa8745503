"""Scores, steps and generation of decoders against their formulas in NumPy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from architectures import BOTH, CASES, DECODERS, ENCODER_DECODERS, random_ids, scores, write
from test_text import byte_pairs, needs_tokenizers

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.pretrained import Sampling

PROMPTS = [[5, 6, 7], [4], [9, 8, 7, 6, 5, 4, 3]]


@pytest.fixture(params=DECODERS)
def loaded(request, tmp_path):
    case = DECODERS[request.param]
    tensors = case.write(tmp_path / "folder")
    return case, tensors, dy.pretrained.load(tmp_path / "folder", dy.ParameterCollection())


@pytest.fixture
def gpt(tmp_path):
    DECODERS["gpt2"].write(tmp_path / "gpt")
    return dy.pretrained.load(tmp_path / "gpt", dy.ParameterCollection())


def expected_scores(case, tensors, ids):
    states, _ = case.formula(tensors, ids, [0] * len(ids), case.config)
    return scores(tensors, states[-1])


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def test_scores(loaded):
    case, tensors, model = loaded
    for n in (1, 2, 9):
        ids = random_ids(n)
        expected = expected_scores(case, tensors, ids).T
        found = model.scores(ids)
        assert found.dim() == (expected.shape, 1)
        np.testing.assert_allclose(found.npvalue(), expected, atol=2e-5 * max(1, np.abs(expected).max()))


def test_steps_are_the_whole(loaded):
    _, _, model = loaded
    ids = random_ids(9)
    whole = model(ids).npvalue()
    for parts in ([9], [1] * 9, [3, 1, 5]):
        state, found, at = None, [], 0
        for n in parts:
            x, state = model.step(ids[at] if n == 1 else ids[at : at + n], state)
            found.append(x.npvalue().reshape(12, -1))
            at += n
        np.testing.assert_allclose(np.concatenate(found, 1), whole, atol=1e-5)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_a_decoder_of_an_encoder(name, tmp_path):
    case = ENCODER_DECODERS[name]
    tensors, both = case.write(tmp_path), BOTH[case.formula]
    model = dy.pretrained.load(tmp_path, dy.ParameterCollection())
    for n, target in ((1, [3]), (9, [2, 5, 7, 4, 9])):
        ids = random_ids(n)
        _, expected = both(tensors, ids, target, case.config)
        found = model.scores(ids, target)
        assert found.dim() == (expected.T.shape, 1)
        np.testing.assert_allclose(found.npvalue(), expected.T, atol=2e-5 * max(1, np.abs(expected).max()))
    written = []
    for prompt in PROMPTS:
        ids = [case.config["decoder_start_token_id"]]
        for _ in range(6):
            ids.append(int(both(tensors, prompt, ids, case.config)[1][-1].argmax()))
        written.append(ids[1:])
    dy.renew_cg(forward_only=True)
    assert model.generate(PROMPTS, longest=6, end=[], forbidden=[]) == written
    assert model.generate(PROMPTS[1], longest=1, width=4, end=[], forbidden=[]) == written[1][:1]
    assert model.generate(PROMPTS[0], longest=3, end=[], prefix=[7, 8])[:2] == [7, 8]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("t5", {"feed_forward_proj": "gated"}, "feed_forward_proj is 'gated'"),
        ("t5", {"num_decoder_layers": 3}, "there is no decoder.block.2"),
        ("t5", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets is 2"),
        ("bart", {"decoder_attention_heads": 5}, "decoder_attention_heads is 5, a divisor of 12"),
        ("bart", {"decoder_layers": None}, "decoder_layers is None"),
        ("bart", {"tie_word_embeddings": False}, "only True"),
        ("marian", {"decoder_start_token_id": -1}, "decoder_start_token_id is -1"),
    ],
)
def test_settings_of_both(name, changes, message, tmp_path):
    case = CASES[name]
    write(tmp_path, {**case.config, **changes}, case.tensors())
    with pytest.raises(ModelFileError, match=message):
        dy.pretrained.load(tmp_path, dy.ParameterCollection())


def test_the_best_piece_each_time(loaded):
    case, tensors, model = loaded
    expected = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(8):
            ids.append(int(expected_scores(case, tensors, ids)[-1].argmax()))
        expected.append(ids[len(prompt) :])
    dy.renew_cg(forward_only=True)
    assert model.generate(PROMPTS, longest=8, end=[]) == expected
    assert model.generate(PROMPTS[0], longest=8, end=[]) == expected[0]
    end = expected[0][3]
    until = [ids[: ids.index(end)] if end in ids else ids for ids in expected]
    assert model.generate(PROMPTS, longest=8, end=end) == until
    assert model.generate(PROMPTS, longest=8, end=[end, 31]) == until
    assert model.generate(PROMPTS, longest=8, end=[], sample=Sampling(2.0, top_k=1)) == expected
    assert model.generate(PROMPTS, longest=8, end=[], sample=Sampling(top_p=1e-6)) == expected


def test_beam_search_finds_the_best_of_all(loaded):
    case, tensors, model = loaded
    prompt = PROMPTS[0]
    first = log_softmax(expected_scores(case, tensors, prompt)[-1])
    totals = np.stack([first[i] + log_softmax(expected_scores(case, tensors, [*prompt, i])[-1]) for i in range(30)])
    best = [int(i) for i in np.unravel_index(totals.argmax(), totals.shape)]
    assert model.generate(prompt, longest=2, width=30, end=[]) == best
    assert model.generate([prompt, prompt], longest=2, width=30, end=[]) == [best, best]


def test_draws_follow_the_probabilities(gpt):
    p = np.exp(log_softmax(gpt.scores([5, 6])[:, 1].npvalue().astype(float) / 2))
    order = np.argsort(-p)
    dy.renew_cg(forward_only=True)
    drawn = np.bincount(np.ravel(gpt.generate([[5, 6]] * 500, longest=1, sample=2.0, end=[])), minlength=30) / 500
    assert np.abs(drawn - p).max() < 0.1
    few = set(np.ravel(gpt.generate([[5, 6]] * 100, longest=1, sample=Sampling(2.0, top_k=3), end=[])))
    assert few <= set(order[:3])
    count = 1 + int(np.argmax(np.cumsum(p[order]) >= 0.6))
    few = set(np.ravel(gpt.generate([[5, 6]] * 100, longest=1, sample=Sampling(2.0, top_p=0.6), end=[])))
    assert few <= set(order[:count])


def test_pieces_are_told_as_they_are_known(gpt):
    end = gpt.generate(PROMPTS[0], longest=4, end=[])[3]
    told = [[] for _ in PROMPTS]
    found = gpt.generate(PROMPTS, longest=6, end=end, each=lambda i, piece: told[i].append(piece))
    assert told == found
    order = []
    gpt.generate(PROMPTS[:2], longest=3, end=[], each=lambda i, piece: order.append(i))
    assert sorted(order[:2]) == sorted(order[2:4]) == [0, 1]


def test_a_server_generates(gpt):
    expected = gpt.generate(PROMPTS, longest=6, end=[])
    with dy.Server(lambda prompt: gpt.generate(prompt, longest=6, end=[])) as server:
        assert [server(prompt) for prompt in PROMPTS] == expected


def test_requests_join_a_running_batch(gpt):
    dy.renew_cg(forward_only=True)
    expected = gpt.generate(PROMPTS[:2], longest=20, end=[])
    told, written, sent = [], threading.Event(), threading.Event()

    def serve(number):
        def tell(_, piece):
            told.append(number)
            if len(told) == 4:
                written.set()
                assert sent.wait(600)

        return gpt.generate(PROMPTS[number], longest=20, end=[], each=tell)

    with dy.Server(serve) as server:
        first = server.submit(0)
        assert written.wait(600)
        second = server.submit(1)
        sent.set()
        assert [first.result(timeout=600), second.result(timeout=600)] == expected
        passes = server.statistics().passes
    assert set(told[8:20]) == {0, 1}  # the second one is written before the first one has ended
    assert passes < 35  # alone they need 40


def test_the_matrix_for_scores_follows_values_and_graphs(gpt):
    dy.renew_cg(forward_only=True)
    before = gpt.generate([5, 6], longest=4, end=[])
    assert gpt._score_matrix() is gpt._score_matrix()
    dy.renew_cg(forward_only=True)
    assert gpt.generate([5, 6], longest=4, end=[]) == before
    table = gpt.embeddings.pieces.table
    table.init_from_array(table.as_array()[::-1])
    again = gpt.generate([5, 6], longest=4, end=[])
    dy.renew_cg(forward_only=True)
    assert again == gpt.generate([5, 6], longest=4, end=[]) != before
    dy.renew_cg()
    dy.cg_checkpoint()
    gpt.generate([5, 6], longest=4, end=[])
    dy.cg_revert()
    assert gpt.generate([5, 6], longest=4, end=[]) == again


@needs_tokenizers
def test_strings(gpt, tmp_path):
    byte_pairs(tmp_path / "gpt")
    gpt = dy.pretrained.load(tmp_path / "gpt", dy.ParameterCollection())
    code = gpt.tokenize("the wall")
    allowed = [gpt.text.tokenizer.token_to_id(piece) for piece in ("w", "a", "ll")]
    ids = gpt.generate(code, longest=4, end=[], allowed=lambda tokens: allowed)
    assert len(ids) == 4
    found = gpt.generate(["the wall", "the"], longest=4, end=[], allowed=lambda tokens: allowed)
    assert found[0] == gpt.decode(ids)
    assert gpt.generate("the wall", longest=4, end=[], allowed=lambda tokens: allowed) == found[0]


def test_a_language_model_is_trained(gpt):
    trainer = dy.AdamTrainer(gpt, 0.01)
    losses = []
    for _ in range(10):
        dy.renew_cg()
        texts = [random_ids(n) for n in (4, 7, 3)]
        loss = dy.esum([dy.sum_elems(dy.cross_entropy(gpt.scores(ids[:-1]), ids[1:])) for ids in texts])
        losses.append(loss.value())
        loss.backward()
        trainer.update()
    assert losses[-1] < 0.7 * losses[0]


def test_files_without_a_matrix_for_scores(tmp_path):
    case = DECODERS["llama"]
    tensors = case.tensors()
    bare = {name.removeprefix("model."): x for name, x in tensors.items() if name != "lm_head.weight"}
    write(tmp_path, case.config, bare)
    model = dy.pretrained.load(tmp_path, dy.ParameterCollection())
    expected, _ = case.formula(tensors, [4, 5], [0, 0], case.config)
    np.testing.assert_allclose(model([4, 5]).npvalue(), expected[-1].T, atol=1e-4)
    with pytest.raises(ValueError, match="no matrix for the scores"):
        model.scores([4, 5])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"num_key_value_heads": 4}, "4 heads of keys and values do not divide 6 heads"),
        ("llama", {"num_attention_heads": 5}, "5 heads do not divide columns of 12"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic"}}, "rope_type is 'dynamic', one of default, linear, llama3"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ("llama", {"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5, only 1.0"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers is .1., 2 of 0 and 1"),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["full"]}, "layer_types is .*, 2 of full_attention"),
        ("llama", {"rope_parameters": 3}, "rope_parameters is 3"),
        ("llama", {"head_dim": -1}, "head_dim is -1"),
        ("llama", {"rope_theta": 0}, "rope_theta is 0"),
        ("qwen2", {"use_sliding_window": 3}, "use_sliding_window is 3, true or false"),
        ("qwen3", {"head_dim": 1 << 20}, "the files hold"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ("gpt2", {"tie_word_embeddings": 3}, "tie_word_embeddings is 3"),
        ("gpt2", {"model_type": "gptj"}, "the architectures that can be read are albert, .*gpt2, llama"),
    ],
)
def test_settings(name, changes, message, tmp_path):
    case = CASES[name]
    write(tmp_path, {**case.config, **changes}, case.tensors())
    model = dy.ParameterCollection()
    with pytest.raises(ModelFileError, match=message):
        dy.pretrained.load(tmp_path, model)
    assert model.parameters_list() == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: g([1] * 33), ValueError, "a text has 33 pieces, more than the 32"),
        (lambda g: g.generate([[1] * 30], longest=5), ValueError, "a prompt of 30 pieces and 5 more"),
        (lambda g: g.generate([[]]), ValueError, "expected pieces"),
        (lambda g: g.generate([[1], ["a"]], longest=2), TypeError, "expected whole numbers"),
        (lambda g: g.generate([[30]], longest=2), IndexError, "there is no piece 30"),
        (lambda g: g.generate([[1, -1]], longest=2), IndexError, "there is no piece -1"),
        (lambda g: g.generate(5), TypeError, "argument prompts"),
        (lambda g: g.generate("text"), ValueError, "no tokenizer"),
        (lambda g: g.generate([[1]], longest=0), ValueError, "argument longest"),
        (lambda g: g.generate([[1]], longest=2, width=0), ValueError, "argument width"),
        (lambda g: g.generate([[1]], longest=2, width=2, sample=1.0), ValueError, "argument sample"),
        (lambda g: g.generate([[1]], longest=2, width=2, each=print), ValueError, "argument each"),
        (lambda g: g.generate([[1]], longest=2, every=2, each=print), ValueError, "argument each"),
        (lambda g: g.generate([[1]], longest=2, width=2, end=[1, 2]), ValueError, "argument end"),
        (lambda g: g.generate([[1]], longest=2, end="x"), TypeError, "argument end"),
        (lambda g: g.generate([[1]], longest=2, sample=0.0), ValueError, "argument temperature"),
        (lambda g: g.generate([[1]], longest=2, sample="x"), ValueError, "argument temperature"),
        (lambda g: g.generate([[1]], longest=2, sample=Sampling(top_k=-1)), ValueError, "argument top_k"),
        (lambda g: g.generate([[1]], longest=2, sample=Sampling(top_p=0)), ValueError, "argument top_p"),
        (lambda g: g.generate([[1]], longest=2, temprature=1), TypeError, "there is no argument temprature; options"),
        (lambda g: g.generate([[1]], max_new_tokens=2), TypeError, "no argument max_new_tokens; write `longest=`"),
        (lambda g: g.generate([[1]], num_beams=2), TypeError, "no argument num_beams; write `width=`"),
        (lambda g: g.generate([[1]], temperature=2), TypeError, "no argument temperature; write `sample=`"),
        (lambda g: g.generate([[1]], width=2, n_best=2), TypeError, "no argument n_best; options with width=2 are"),
    ],
)
def test_errors(call, error, message, gpt):
    with pytest.raises(error, match=message):
        call(gpt)
    assert gpt([1, 2]).npvalue().shape == (12, 2)
    assert gpt.generate([]) == []
