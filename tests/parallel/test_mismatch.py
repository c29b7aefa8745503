"""If ranks do different things, all of them get an error that names the difference."""

from __future__ import annotations

from parallel import jobs

SAID = {
    "shapes": "wrap: the ranks have different models: parameter /_1 is Parameters of shape (5, 4) on rank 0 and "
    "Parameters of shape (4, 5) on rank 1",
    "missing": "parameter /_1 is Parameters of shape (4,) on rank 0 and missing on rank 1",
    "classes": "trainer is AdamTrainer on rank 0 and AmsgradTrainer on rank 1",
    "settings": "AdamTrainer's beta_1 is 0.9 on rank 0 and 0.8 on rank 1",
    "precisions": "precision is float32 on rank 0 and bf16 on rank 1",
    "order": "parameter /B comes on rank 0 where parameter /A comes on rank 1",
    "frozen": "parameter /_0 is Parameters of shape (2, 3) on rank 0 and Parameters of shape (2, 3), not updated on "
    "rank 1",
    "reductions": "reduction is sum on rank 0 and mean on rank 1",
    "rates": "AdamTrainer: the learning rate is 0.2 on rank 0 and 0.1 on rank 1",
    "constants": "AdamTrainer: the constant beta_2 is 0.99 on rank 0 and 0.98 on rank 1",
    "decays": "AdamWTrainer: the decoupled weight decay is 0.5 on rank 0 and 0.02 on rank 1",
    "groups": "AdamTrainer: the groups of parameters are [{'names': ['/_0'], 'learning_rate': 0.2,",
    "skips": "AdamTrainer: the setting of skip_nonfinite is False on rank 0 and True on rank 1",
    "subsets": "AdamTrainer: /_0 is updated on rank 0 and not on rank 1",
    "added": "the model had 2 parameters and tables when its trainer was wrapped, and has 3 now",
    "replaced": "AdamTrainer: /_1 is not among the parameters and tables that the model had when its trainer was",
    "outside": "the parameters and tables made before /part/_0, in other collections or removed since, are not the "
    "same on rank 0 and rank 1",
    "lengths": "making shared memory of ",
    "broadcasts": "in broadcast of ",
    "calls": "while rank",
    "checkpoints": "in one order; ask for a number that is the same on all ranks, with `if run.every(20):` of a "
    "`dy.Training` or `if trainer.updates % 20 == 0:`",
    "infinite": "the gradients of /_0 are not finite",
    "unclipped": "the gradients of /_0 are not finite",
    "data": "shard: the content or order of the items is not the same on rank 0 and rank 1",
    "turns": "in update of trainer ",
    "costs": "the cost of some items is not the same on rank 0 and rank 1 ([1.0, 2.0, "
    "3.0, 4.0] and [2.0, 3.0, 4.0, 5.0])",
    "ways": "the setting of uneven is not the same on rank 0 and rank 1 (join and drop)",
    "children": "this is a child of rank",
}


def test_what_differs_is_named(tmp_path) -> None:
    result = jobs.launch(tmp_path, "mismatched.py")
    assert result.code == 0, result.err
    for rank in (0, 1):
        said = dict(
            line.partition("in ")[2].split(": ", 1) for line in result.out.splitlines() if f"[rank {rank}] in " in line
        )
        assert list(said) == list(SAID)
        for name, words in SAID.items():
            assert words in said[name], (name, said[name])
