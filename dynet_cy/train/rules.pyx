"""Facts about each rule from its row in optim.def: how many planes of state it has, and which constants it reads."""

import re


cdef extern from *:
    """
    static const int dy_states_of_rules[] = {
    #define OPTIM(name, states, ...) states,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    static const char *const dy_names_of_rules[] = {
    #define OPTIM(name, ...) #name,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    static const char *const dy_texts_of_rules[] = {
    #define OPTIM(name, states, rule, ...) #rule,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    """
    const int* states_of_rules "dy_states_of_rules"
    const char* const names_of_rules "dy_names_of_rules"[]
    const char* const texts_of_rules "dy_texts_of_rules"[]


CONSTANTS = ("b1", "b2", "eps")


cdef int n_states(int rule) noexcept:
    return states_of_rules[rule]


cdef list constants_of(trainer):
    return [trainer._constants[constant] for constant in CONSTANTS if constant in trainer._constants]


def check_constants(cls):
    """Check that a trainer class has a value for each constant that its rule reads, and for no other.

    Raises:
        TypeError: a constant is missing or unknown.
    """
    given = cls._constants.keys()
    unknown = sorted(given - set(CONSTANTS))
    if unknown:
        raise TypeError(f"{cls.__name__}: rules have no constant {unknown[0]!r}, only b1, b2 and eps")
    if cls._rule is None:
        return
    name = names_of_rules[<int>cls._rule].decode()
    read = set(re.findall(r"\w+", texts_of_rules[<int>cls._rule].decode())) & set(CONSTANTS)
    for constant in CONSTANTS:
        if (constant in read) != (constant in given):
            reads = "reads" if constant in read else "does not read"
            has = "gives it no value" if constant in read else "gives it one"
            raise TypeError(f"{cls.__name__}: the rule {name} {reads} the constant {constant!r}, and _constants {has}")
