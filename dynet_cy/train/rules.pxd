"""The rules of trainers, by their numbers in optim.def."""

# Planes of state that a rule has.
cdef int n_states(int rule) noexcept
