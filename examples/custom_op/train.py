"""A network of radial basis functions that learns the XOR of two numbers, with the op of this package.

pip install .
python train.py
"""

import argparse

import dynet_cy as dy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="store_true", help="use the op in Python, not the compiled one")
    parser.add_argument("--epochs", type=int, default=200)
    dy.config.add_options(parser)
    args = parser.parse_args()
    if args.python:
        from rbf.in_python import rbf
    else:
        from rbf.compiled import rbf

    dy.reset_random_seed(1)
    model = dy.ParameterCollection()
    centers, W, b = (
        model.add_parameters((2, 8), init=dy.NormalInitializer(0, 1)),
        model.add_parameters((1, 8)),
        model.add_parameters(1),
    )
    trainer = dy.AdamTrainer(model, 0.05)
    data = [((x, y), x ^ y) for x in (0, 1) for y in (0, 1)]
    for _ in range(args.epochs):
        dy.renew_cg()
        scores = [W * rbf(dy.inputVector(x), centers, gamma=1.0) + b for x, _ in data]
        loss = dy.esum([dy.binary_cross_entropy_with_logits(s, t) for s, (_, t) in zip(scores, data)])
        loss.backward()
        trainer.update()
    print(f"loss {loss.value():.3f}")
    for (x, t), s in zip(data, scores):
        print(f"{x[0]} xor {x[1]} = {t}: {dy.logistic(s).value():.2f}")


if __name__ == "__main__":
    main()
