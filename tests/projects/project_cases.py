"""The programs of the folder `programs`, and how they are run: for each case, command lines in one folder.

The last run of a case with several reads the files that the runs before it wrote.
"""

CASES = {
    "biaffine": [["biaffine.py", "train", "model"], ["biaffine.py", "parse", "model"]],
    "uniparse, sgd": [["uniparse.py", "sgd"]],
    "uniparse, rmsprop": [["uniparse.py", "rmsprop"]],
    "uniparse, adam": [["uniparse.py", "adam"]],
    "uniparse, adadelta": [["uniparse.py", "adadelta"]],
    "uniparse, adagrad": [["uniparse.py", "adagrad"]],
    "Mimick, LSTM": [["mimick.py", "lstm", "--dynet-mem", "400"], ["mimick.py", "lstm", "--model-in", "model.bin"]],
    "Mimick, CNN": [["mimick.py", "cnn"], ["mimick.py", "cnn", "--model-in", "model.bin"]],
    "xnmt": [["xnmt.py", "train", "settings", "a", "b"], ["xnmt.py", "translate", "settings", "a", "b"]],
    "jointRE": [["jointre.py", "train", "model"], ["jointre.py", "predict", "model"]],
    "jointRE, SGD": [["jointre.py", "train", "model", "neg_log", "sgd"], ["jointre.py", "predict", "model"]],
    "jointRE, Viterbi loss": [["jointre.py", "train", "model", "viterbi"]],
    "TUPA": [["tupa.py", "train", "model"], ["tupa.py", "parse", "model"]],
    "bilstm-aux, softmax": [["bilty.py", "train", "model", "softmax"], ["bilty.py", "test", "model"]],
    "bilstm-aux, CRF": [["bilty.py", "train", "model", "crf"], ["bilty.py", "test", "model"]],
    "bilstm-aux, Viterbi loss": [["bilty.py", "train", "model", "viterbi"]],
    "bilstm-aux, batches": [
        ["bilty.py", "train", "model", "softmax", "--minibatch", "4", "--dynet-autobatch", "1"],
    ],
    "RNNG": [["rnng.py", "train", "model"], ["rnng.py", "parse", "model"]],
    "averaging, sum": [["averaging.py", "sum"]],
    "averaging, mean": [["averaging.py", "mean"]],
}
