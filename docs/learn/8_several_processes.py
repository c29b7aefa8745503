"""
8. Two processes, then two machines
===================================

A program that builds a graph for each example uses one core well, but most machines
have more. The simplest way to use them also works on several machines: run the same
program several times, give each process a part of the data, and let them make every
update together.
"""

# %%
# A program written for one process needs three more lines; they are numbered below.
# This one learns whether a string has more opening than closing brackets. Here the
# program is a string that we write to a file, because the launcher starts files. Yours
# would be a file already.

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import random

import dynet_cy as dy

random.seed(1)


def example():
    text = [random.choice("()") for _ in range(random.randint(5, 25))]
    return text, int(text.count("(") > text.count(")"))


train = [example() for _ in range(1600)]
test = [example() for _ in range(300)]

dy.reset_random_seed(1)
model = dy.ParameterCollection()
table = model.add_lookup_parameters((2, 8))
reader = dy.LSTMBuilder(1, 8, 24, model)
W = model.add_parameters((2, 24))
trainer = dy.parallel.wrap(dy.AdamTrainer(model, alpha=0.01))  # 1


def scores(text):
    letters = [table["()".index(letter)] for letter in text]
    return W * reader.initial_state().transduce(letters)[-1]


def right(examples):
    dy.renew_cg(forward_only=True)
    found = [scores(text) for text, _ in examples]
    dy.forward(found)
    return sum(s.npvalue().argmax() == label for s, (_, label) in zip(found, examples))


batches = [train[i : i + 16] for i in range(0, len(train), 16)]
for epoch in range(4):
    updates = 0
    for batch in dy.parallel.shard(batches):  # 2
        dy.renew_cg()
        losses = [dy.pickneglogsoftmax(scores(text), label) for text, label in batch]
        dy.average(losses).backward()
        trainer.update()
        updates += 1
    if dy.parallel.rank() == 0:  # 3
        share = right(test) / len(test)
        print(f"epoch {epoch}: {updates} updates, {share:.1%} right", flush=True)
"""

folder = tempfile.TemporaryDirectory()
Path(folder.name, "train.py").write_text(PROGRAM, encoding="utf-8")


def run(*arguments):
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder.name, capture_output=True, text=True)
    print("$ python", *arguments)
    print(done.stdout + done.stderr)


# %%
# Started as usual, it trains as if the three lines were not there:

run("train.py")

# %%
# And now with two processes.

run("-m", "dynet_cy.launch", "-n", "2", "train.py")

# %%
# Let us go through the three lines.
#
# 1. `dy.parallel.wrap` sets the parameters of all processes to the same values, and
#    makes them update together. Each process builds graphs for its own batches. Before
#    an update the gradients of all processes are averaged, and then every process makes
#    the same update. So after each update all processes have the same model, to the
#    last bit.
# 2. `dy.parallel.shard` gives each process its share of the data. With two processes,
#    each has 50 of the 100 batches. An update now sees 32 examples, 16 from each
#    process, and there are half as many updates. A larger batch may need a larger
#    learning rate.
# 3. All processes run the whole program, so all of them would print. `dy.parallel.rank`
#    is 0 in one of them; let only that one print, and save the model.
#
# All processes must have the same data before they divide them. Here ``random.seed(1)``
# makes sure of that. If the data differ, you get an error that says so.
#
# Is it faster? On two free cores, two processes train a tagger with batches of 64
# sentences 1.85 times as fast as one, by :doc:`our measurements </project/results>`.
# For that, computing the gradients must take much longer than exchanging them, which is
# not the case in this small program. Start as many processes as there are free cores,
# and see :doc:`what to expect </lab/scaling>` from many processes.
#
# When something goes wrong
# -------------------------
#
# The more processes there are, the more often one of them fails. The others must not
# wait forever. Let us make one fail:

UPDATE = "        trainer.update()\n"
BROKEN = """\
        if dy.parallel.rank() == 1 and updates == 20:
            raise SystemExit("out of luck")
"""
broken = PROGRAM.replace(UPDATE, UPDATE + BROKEN)
Path(folder.name, "broken.py").write_text(broken, encoding="utf-8")

run("-m", "dynet_cy.launch", "-n", "2", "broken.py")
folder.cleanup()

# %%
# The job ends within seconds, says which process failed and why, and leaves no process
# running. The same happens when a process is killed, or hangs. With
# ``--max-restarts 3`` the launcher starts the job again instead. Then the program
# should continue from a checkpoint, not from the beginning; that takes two more calls,
# which :doc:`/parallel` shows.
#
# Two machines
# ------------
#
# Nothing in the program says where its processes run. On several machines MPI starts
# them, as for most programs on clusters; ``pip install '.[mpi]'`` in the clone installs
# what dynet_cy needs for that. Write the names of the machines into a file ``hosts``,
# and start the same program::
#
#     python -m dynet_cy.launch --backend mpi -n 16 \
#         --mpi 'mpiexec --hostfile hosts' train.py
#
# Under Slurm, which already knows the machines::
#
#     python -m dynet_cy.launch --backend mpi --mpi 'srun --mpi=pmix' train.py
#
# Processes on one machine share memory; only sums of gradients are sent over the
# network. The machines need the same Python environment and the same data, usually on a
# shared file system. :doc:`/mpi` has the details.
#
# What to remember: **wrap the trainer, shard the data, let rank 0 print.** With these
# three lines a program is ready for one core, for one machine and for many.
