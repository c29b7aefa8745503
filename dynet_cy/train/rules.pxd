"""The rules of trainers, by their numbers in optim.def."""

# The number of planes of state of a rule.
cdef int n_states(int rule) noexcept
# The attributes of a trainer that hold the constants of its rule.
cdef list constants_of(trainer)
