"""Files: saved objects, checkpoints and DyNet's text files, written whole or not at all."""
