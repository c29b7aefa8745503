"""Making nodes of the current graph: shapes are inferred, arguments checked, and a node appended."""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport DRAW_WORDS, FLOATS, INTEGERS, MOST_ALONG, Dim
from dynet_cy.core.threads cimport let_be_revived, revived
from dynet_cy.graph.expressions cimport Expression, ForwardExpression, number_in
from dynet_cy.graph.origin cimport current_origin, describe_dim, explain, noting
from dynet_cy.graph.structs cimport (
    COMPUTED, NO_BATCH, RUNNING, Extra, Graph, Node, Use, claim_values, device_of, engine, hold_node, holder_in,
    no_extra, nodes_of, set_holder, uses_of,
)
from dynet_cy.graph.table cimport Table, asked_device, graph_table, hold, let_go, placed, raise_running, truncate_nodes
from dynet_cy.memory.arena cimport Array, array_push, out_of_memory
from dynet_cy.ops.registry cimport FIRST, FLAT, UNREAD, Op, Shapes, register, rule_index, same_dim

from dynet_cy.graph.structs import operators
from dynet_cy.ops.registry import DimensionError


# ==== making ======================================================================================


cdef extern from "making.h":
    # derived: functions of bint dy_too_large
    bint dy_too_large(Graph* g, const Dim* x)
    # end of functions
    object fetch_error "dy_fetch_error"()


ctypedef int (*QuietDimRule)(const Shapes* s, Dim* y) noexcept

cdef enum:
    MOST_ON_STACK = 8

cdef Table* table = graph_table()


# ---- nodes -------------------------------------------------------------------

cdef uint32_t add_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                       Extra* extra) except? 0xFFFFFFFF:
    """Append a node.  If an error is raised, the graph is unchanged."""
    return add_of_types(g, op, args, n, extra, NULL)


cdef inline uint32_t add_of_types(Graph* g, const Op* op, const uint32_t* args, uint32_t n, Extra* extra,
                                  const uint8_t* result) except? 0xFFFFFFFF:
    """Append a node, with the type of its result.

    Args:
        result: NULL, or the type of the result, if those of the arguments are right.
    """
    cdef const Dim* few[MOST_ON_STACK]
    cdef const Dim** many
    cdef bint made
    cdef Dim* y = reserve_node(g)
    if n <= MOST_ON_STACK:
        made = shape_node(g, op, args, n, extra, few, y, result)
    else:
        many = <const Dim**>malloc(n * sizeof(void*))
        if many == NULL:
            raise MemoryError(f"{op.name.decode()}: {n} arguments")
        try:
            made = shape_node(g, op, args, n, extra, many, y, result)
        finally:
            free(many)
    if not made:
        return add_of_integers(g, op, args, n, extra)
    return append(g, op, args, n, extra)


cdef uint32_t add_of_integers(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                              Extra* extra) except? 0xFFFFFFFF:
    """Append a node with integers as arguments: as the op declares, they stay, or become floats by nodes of their
    own, or another op takes them."""
    cdef uint8_t result = op.result, kept = op.integers
    cdef bint any_floats = False, moves_floats = False
    cdef uint32_t few[MOST_ON_STACK]
    cdef uint32_t* own = few                        # making nodes may move the arguments of others
    cdef uint32_t i, one
    memset(few, 0, sizeof(few))                     # compilers do not see that n is not 0
    for i in range(n):
        if nodes_of(g)[args[i]].dim.type == FLOATS:
            any_floats = True
            moves_floats = moves_floats or op.moves >> rule_index(i) & 1
    if op.of_integers != NULL and not any_floats:
        return add_node(g, op.of_integers, args, n, extra)
    if op.moves and not moves_floats:
        for i in range(n):
            if op.moves >> rule_index(i) & 1:
                result = INTEGERS
                kept |= op.moves
                break
    if n > MOST_ON_STACK:
        own = <uint32_t*>malloc(n * sizeof(uint32_t))
        if own == NULL:
            raise MemoryError(f"{op.name.decode()}: {n} arguments")
    try:
        memcpy(own, args, n * sizeof(uint32_t))
        for i in range(n):
            if nodes_of(g)[own[i]].dim.type == INTEGERS and not kept >> rule_index(i) & 1:
                one = own[i]
                own[i] = add_of_types(g, to_floats, &one, 1, NULL, &floats)
        return add_of_types(g, op, own, n, extra, &result)
    finally:
        if own != few:
            free(own)


cdef uint8_t floats = FLOATS
cdef const Op* to_floats = NULL                     # the op that converts


cdef void convert_by(const Op* op) noexcept:
    global to_floats
    to_floats = op


cdef uint32_t add_node_like(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                            uint32_t like) except? 0xFFFFFFFF:
    cdef Dim* y = reserve_node(g)
    y[0] = nodes_of(g)[like].dim
    return append(g, op, args, n, NULL)


cdef inline Dim* reserve_node(Graph* g) except NULL:
    """The memory for the shape of the next node.  The op's shape rule writes there directly: copying a shape that has
    just been written in small pieces would stall on store forwarding."""
    cdef Node* node
    if g.version == RUNNING:
        raise_running()
    hold(table, g.slot)
    node = <Node*>array_push(&g.nodes, sizeof(Node))
    if node != NULL:
        g.nodes.top -= sizeof(Node)                 # `append` allocates it
    let_go(table, g.slot)
    if node == NULL:
        out_of_memory("a node of the graph")
    return &node.dim


cdef inline int shape_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                           Extra* extra, const Dim** dims, Dim* y, const uint8_t* result) except -1:
    """Infer the shape of a new node.  `dims` has an element for the shape of each argument.

    Returns:
        False: nothing is inferred, since an argument is integers and no type of the `result` is given.
    """
    cdef Shapes s
    cdef uint32_t i
    cdef uint8_t types = 0
    cdef Node* nodes = nodes_of(g)
    s.bd = 1
    for i in range(n):
        dims[i] = &nodes[args[i]].dim
        types |= dims[i].type
        if dims[i].bd != s.bd and dims[i].bd != 1 and not op.any_batch:
            if s.bd != 1:
                fail(g, op, args, n, f"batch sizes {s.bd} and {dims[i].bd} differ")
            s.bd = dims[i].bd
    y.type = op.result
    if result != NULL:
        y.type = result[0]
    elif types:
        return False
    s.n = n
    s.x = dims
    if extra != NULL:
        s.attrs = extra.attrs
        s.items = extra.items
        s.n_items = extra.n_items
        s.object = extra.object
    else:
        s.attrs = NULL
        s.items = NULL
        s.n_items = 0
        s.object = NULL
    y.bd = s.bd
    # Called as if it could not raise: a try block costs more than the rest of this function.
    if (<QuietDimRule>op.dim)(&s, y) == -1:
        fail(g, op, args, n, None)
    if dy_too_large(g, y):
        fail(g, op, args, n, too_large(y))
    return True


cdef str too_large(const Dim* y):
    return (f"the result {describe_dim(y)} is too large: an axis can have {MOST_ALONG} elements (2^31 - 1), the batch "
            "as many, and an expression 2^44 elements in total")


cdef int fail(Graph* g, const Op* op, const uint32_t* args, uint32_t n, str reason) except -1:
    """Raise an error with the reason, or with the message of the exception now set, and all arguments."""
    kind = DimensionError
    if reason is None:
        error = fetch_error()
        if not isinstance(error, (DimensionError, IndexError)):
            raise error
        kind = type(error)
        reason = str(error)
    raise kind(explain(op, reason, args, n, g))


cdef inline void write_node(Node* node, const Op* op, uint32_t n, size_t args_top, const Extra* extra,
                            uint32_t item_count) noexcept:
    """Write all of a node but its shape and its items."""
    node.op = op.id                                 # these two are one word, which is stored once
    node.item_count = item_count
    node.nargs = n
    node.args = <uint32_t>(args_top // sizeof(uint32_t))
    node.batch = NO_BATCH
    if extra != NULL:
        memcpy(node.attrs, extra.attrs, sizeof(node.attrs))
        node.object = extra.object
        node.val = extra.val
    else:
        memset(node.attrs, 0, sizeof(node.attrs))
        node.object = NULL
        node.val = NULL


cdef inline bint is_simple(const Graph* g, const Op* op, const Extra* extra) noexcept:
    """Whether a node needs no bookkeeping besides its struct, arguments and items."""
    return (not (op.random or op.raised != NULL or g.forward_only or g.multi_device or g.immediate or noting)
            and (extra == NULL or not (extra.state or extra.device)))


cdef inline bint has_capacity(const Array* a, size_t bytes) noexcept:
    return bytes <= a.capacity - a.top


cdef uint32_t append(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                     Extra* extra) except? 0xFFFFFFFF:
    """Append the node whose shape has been written."""
    cdef size_t bytes = n * sizeof(uint32_t)
    cdef Node* node = nodes_of(g) + g.n_nodes
    cdef uint32_t i, n_items = extra.n_items if extra != NULL else 0
    hold(table, g.slot)
    if (n > MOST_ON_STACK or not is_simple(g, op, extra) or (n_items and node.dim.bd > 1)
            or not has_capacity(&g.state, 1) or not has_capacity(&g.held, 1) or not has_capacity(&g.args, bytes)
            or not has_capacity(&g.items, n_items * sizeof(uint32_t))):
        let_go(table, g.slot)
        return append_any(g, op, args, n, extra)
    # The fast path, for most nodes, with a third of the instructions.
    write_node(node, op, n, g.args.top, extra, extra.item_count if n_items else 0)
    node.items = <uint32_t>(g.items.top // sizeof(uint32_t))
    for i in range(n):
        (<uint32_t*>(g.args.base + g.args.top))[i] = args[i]
    for i in range(n_items):
        (<uint32_t*>(g.items.base + g.items.top))[i] = extra.items[i]
    g.state.base[g.state.top] = 0
    g.state.top += 1
    g.held.base[g.held.top] = 0
    g.held.top += 1
    g.args.top += bytes
    g.items.top += n_items * sizeof(uint32_t)
    g.nodes.top += sizeof(Node)
    g.n_nodes += 1
    let_go(table, g.slot)
    return g.n_nodes - 1


cdef uint32_t append_any(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                         Extra* extra) except? 0xFFFFFFFF:
    """Append any node; the arrays of the graph may have to grow."""
    cdef size_t nodes_top = g.nodes.top, args_top = g.args.top
    cdef size_t items_top = g.items.top
    cdef Node* node = nodes_of(g) + g.n_nodes
    cdef int device = placed(g, op, args, n, extra)
    cdef uint32_t origin = current_origin() if noting else 0
    cdef uint8_t* state
    cdef uint8_t* held = NULL
    cdef Use* use = NULL
    cdef uint32_t* own_args
    cdef uint32_t* items = NULL
    cdef uint32_t i, item_count = 0, n_items = 0
    hold(table, g.slot)
    state = <uint8_t*>array_push(&g.state, 1)
    if g.forward_only:
        use = <Use*>array_push(&g.uses, sizeof(Use))
    else:
        held = <uint8_t*>array_push(&g.held, 1)
    if n > MOST_ON_STACK and <char*>(args + n) == g.args.base + args_top:       # `apply` has written them there
        own_args = <uint32_t*>args
        args_top -= n * sizeof(uint32_t)
    else:
        own_args = <uint32_t*>array_push(&g.args, n * sizeof(uint32_t))
    g.may_raise |= op.raised != NULL
    if op.random:
        item_count = DRAW_WORDS
        n_items = node.dim.bd * DRAW_WORDS
    elif extra != NULL and extra.n_items:
        item_count = extra.item_count
        n_items = extra.n_items
        if n_items == item_count:                   # the same items for the whole batch
            n_items *= node.dim.bd
    if n_items:
        items = <uint32_t*>array_push(&g.items, n_items * sizeof(uint32_t))
    if (state == NULL or own_args == NULL or (n_items and items == NULL)
            or (use == NULL and held == NULL) or (g.multi_device and array_push(&g.devices, 1) == NULL)):
        truncate_nodes(g, nodes_top, args_top, items_top)
        let_go(table, g.slot)
        out_of_memory("a node of the graph")
    write_node(node, op, n, args_top, extra, item_count)
    node.items = <uint32_t>(items_top // sizeof(uint32_t))
    if own_args != args:
        for i in range(n):
            own_args[i] = args[i]
    if op.random:
        number_draws(g, node.dim.bd, items)
    elif n_items:
        i = 0
        while i < n_items:                          # range() with a variable step would call Python
            memcpy(items + i, extra.items, extra.n_items * sizeof(uint32_t))
            i += extra.n_items
    state[0] = extra.state if extra != NULL else 0
    if use != NULL:
        set_holder(use, NULL)
        use.consumers = 0
        for i in range(n):
            uses_of(g)[own_args[i]].consumers += 1
    else:
        held[0] = 0
    i = g.n_nodes
    if g.multi_device:
        g.devices.base[i] = <char>device
    if noting:
        note_origin(g, origin)
    g.n_nodes += 1
    g.nodes.top += sizeof(Node)
    let_go(table, g.slot)
    if g.immediate and not state[0] & COMPUTED:
        run_at_once(g, i, nodes_top, args_top, items_top)
    return i


cdef void number_draws(Graph* g, uint32_t bd, uint32_t* items) noexcept:
    """Write the items of a random node: the number of the draw, and a key, of each batch element."""
    cdef uint32_t i
    for i in range(bd):
        items[i * DRAW_WORDS] = g.draws + i
        items[i * DRAW_WORDS + 1] = <uint32_t>g.draw_key
        items[i * DRAW_WORDS + 2] = <uint32_t>(g.draw_key >> 32)
    g.draws += bd


cdef int run_at_once(Graph* g, uint32_t i, size_t nodes_top, size_t args_top, size_t items_top) except -1:
    """Compute the last node; the graph loses it, down to the tops of its arrays before, if that fails."""
    try:
        engine().forward(g, &i, 1, 0)
    except Exception:
        hold(table, g.slot)
        g.n_nodes -= 1
        truncate_nodes(g, nodes_top, args_top, items_top)
        let_go(table, g.slot)
        raise
    return 0


cdef void note_origin(Graph* g, uint32_t origin) noexcept:
    """Record the line and scope of the next node; if there is no memory, they remain unknown."""
    cdef size_t n = (g.n_nodes + <size_t>1) * sizeof(uint32_t)
    cdef uint32_t* origins = <uint32_t*>array_push(&g.origins, n - g.origins.top)
    if origins != NULL:
        memset(origins, 0, <size_t>(g.origins.base + n - <char*>origins))  # nothing was recorded for earlier nodes
        (<uint32_t*>g.origins.base)[g.n_nodes] = origin


# ---- of expressions ----------------------------------------------------------

cdef Expression wrap(Graph* g, uint32_t index):
    """A node as an expression."""
    cdef Expression y
    if g.forward_only:
        y = holder_of(g, index)
        if y is not None:
            return y
        y = ForwardExpression.__new__(ForwardExpression)
        let_be_revived(y)
        hold(table, g.slot)
        set_holder(&uses_of(g)[index], <void*>y)
        let_go(table, g.slot)
    else:
        y = Expression.__new__(Expression)
        refer(y, g, index)
        return y
    y.version = g.version
    y.slot = g.slot
    y.index = index
    return y


cdef void refer(Expression x, Graph* g, uint32_t index) noexcept:
    x.version = g.version
    x.slot = g.slot
    x.index = index
    hold(table, g.slot)
    hold_node(g, index)
    let_go(table, g.slot)


cdef Expression holder_of(Graph* g, uint32_t index):
    """The expression of a node, or None if there is none or another thread is about to free it."""
    cdef object found
    hold(table, g.slot)
    found = revived(holder_in(&uses_of(g)[index]))
    let_go(table, g.slot)
    return <Expression>found


cdef inline uint32_t argument(Graph* g, const Op* op, uint32_t i, object x) except? 0xFFFFFFFF:
    """The number of x in the current graph `g`, or an error that names op and argument."""
    if not isinstance(x, Expression):
        raise_type(op, i, x)
    return number_in(g, <Expression>x)


cdef int raise_type(const Op* op, uint32_t i, object x) except -1:
    names = op.args.decode().split()
    name = names[i] if i < len(names) and not names[i].endswith("...") else f"argument {i}"
    raise_not_expression(op.name.decode(), name, x)


cdef int raise_not_expression(str function, str name, object x) except -1:
    why = "; `output()` of a state before its first input is None" if x is None else ""
    raise TypeError(f"{function}: {name} must be an Expression, not {type(x).__name__}{why}")


cdef Expression expression(object x, str function, str name):
    """x as an expression of the current graph: for functions that look at its shape
    before they make a node."""
    if not isinstance(x, Expression):
        raise_not_expression(function, name, x)
    (<Expression>x).enter()
    return <Expression>x


cdef list sequence(object xs, const char* function):
    """The expressions of a list argument."""
    if not isinstance(xs, (list, tuple)) and not hasattr(xs, "__iter__"):
        raise TypeError(
            f"{function.decode()}: a list of Expressions is needed, not {type(xs).__name__}")
    return list(xs)


cdef Expression apply1x(const Op* op, object x, Extra* extra):
    """The node op(x), in the current graph."""
    cdef Graph* g = claim_current()                       # only once: the lookup has a cost
    cdef uint32_t a
    try:
        a = argument(g, op, 0, x)
        return wrap(g, add_node(g, op, &a, 1, extra))
    finally:
        release_current(g)


cdef Expression apply1(const Op* op, object x):
    return apply1x(op, x, NULL)


cdef Expression apply2x(const Op* op, object a, object b, Extra* extra):
    """The node op(a, b), in the current graph."""
    cdef Graph* g = claim_current()
    cdef uint32_t args[2]
    try:
        args[0] = argument(g, op, 0, a)
        args[1] = argument(g, op, 1, b)
        return wrap(g, add_node(g, op, args, 2, extra))
    finally:
        release_current(g)


cdef Expression apply2(const Op* op, object a, object b):
    return apply2x(op, a, b, NULL)


cdef Expression apply1_for(str name, const Op* op, object x, Extra* extra):
    """`apply1x` for a public function whose op is shared with others: errors name the function."""
    cdef Extra unchanged = extra[0]                 # a shape rule may change attributes
    cdef Op named
    try:
        return apply1x(op, x, extra)
    except (DimensionError, IndexError, TypeError):
        named = op[0]
    spelled = name.encode()
    named.name = spelled
    return apply1x(&named, x, &unchanged)           # fails again


cdef Expression apply2_for(str name, const char* arguments, const Op* op, object a, object b, Extra* extra):
    """`apply2x` for a public function whose op is shared with others: errors name the function and its arguments.

    Args:
        arguments: their names, as in `op.args`; NULL: those of the op.
    """
    cdef Extra unchanged = extra[0]                 # a shape rule may change attributes
    cdef Op named
    try:
        return apply2x(op, a, b, extra)
    except (DimensionError, IndexError, TypeError):
        named = op[0]
    spelled = name.encode()
    named.name = spelled
    if arguments != NULL:
        named.args = arguments
    return apply2x(&named, a, b, &unchanged)        # fails again


cdef Expression apply(const Op* op, object xs, Extra* extra):
    """The node op(xs...), in the current graph.  xs: a sequence of expressions."""
    cdef list arguments = <list>xs if type(xs) is list else sequence(xs, op.name)
    cdef Graph* g
    if not arguments:
        raise ValueError(f"{op.name.decode()}: the list of arguments is empty")
    g = claim_current()
    try:
        return wrap(g, add_list(g, op, arguments, len(arguments), extra))
    finally:
        release_current(g)


cdef uint32_t add_list(Graph* g, const Op* op, list arguments, uint32_t n, Extra* extra) except? 0xFFFFFFFF:
    cdef uint32_t few[MOST_ON_STACK]
    cdef uint32_t i
    if n <= MOST_ON_STACK:
        for i in range(n):
            few[i] = argument(g, op, i, arguments[i])
        return add_node(g, op, few, n, extra)
    # First resolve all arguments, as some (parameters) may add nodes; then write the list directly to its final place,
    # without another allocation.
    for i in range(n):
        argument(g, op, i, arguments[i])
    return make_in_place(g, op, arguments, n, extra)


cdef uint32_t make_in_place(Graph* g, const Op* op, list arguments, uint32_t n, Extra* extra) except? 0xFFFFFFFF:
    cdef size_t top
    cdef uint32_t* args
    cdef uint32_t i
    hold(table, g.slot)
    top = g.args.top
    args = <uint32_t*>array_push(&g.args, n * sizeof(uint32_t))
    let_go(table, g.slot)
    if args == NULL:
        out_of_memory(f"{n} arguments of {op.name.decode()}")
    try:
        for i in range(n):
            args[i] = number_in(g, <Expression>arguments[i])
        return add_node(g, op, args, n, extra)
    except BaseException:
        hold(table, g.slot)
        if g.args.top == top + n * sizeof(uint32_t):    # no other thread has set one
            g.args.top = top
        let_go(table, g.slot)
        raise


cdef uint32_t leaf_index(Graph* g, const Op* op, const Dim* dim, Extra* extra) except? 0xFFFFFFFF:
    """A node without arguments and of a given shape, in the current graph `g`."""
    if dy_too_large(g, dim):
        raise DimensionError(f"{op.name.decode()}: {too_large(dim)}")
    reserve_node(g)[0] = dim[0]
    return append(g, op, NULL, 0, extra)


cdef Expression leaf(const Op* op, const Dim* dim, Extra* extra):
    cdef Graph* g = claim_current()
    try:
        return wrap(g, leaf_index(g, op, dim, extra))
    finally:
        release_current(g)


cdef float* place(Graph* g, size_t n) except NULL:
    """Allocate the value of a leaf of the current graph `g`."""
    if g.version == RUNNING:
        raise_running()
    hold(table, g.slot)
    cdef float* v = <float*>claim_values(g, max(n, <size_t>1) * sizeof(float))
    let_go(table, g.slot)
    if v == NULL:
        out_of_memory("an input")
    return v


# ==== transfer ====================================================================================
#
# Copies of values from one device to another.

TO_DEVICE = register(b"to_device", b"e", same_dim, NULL, NULL)
TO_DEVICE.batching = FLAT
TO_DEVICE.moves = FIRST
TO_DEVICE.role = TRANSFERS
TO_DEVICE.unread = UNREAD
TO_DEVICE.no_gradient_because = b"the executor of multi-device graphs copies values, and gradients back"


def to_device(e: Expression, device_str: str) -> Expression:
    """An expression with the value of `e` on a device; its gradient goes back to where `e` is.

    Args:
        e: of any shape.
        device_str: "CPU", or "GPU:0" and so on; "" for the default device.

    Returns:
        Expression with the shape of `e`; a copy, even on the same device.

    Raises:
        TypeError: `e` is not an Expression, or `device_str` not a string.
        RuntimeError: there is no such device.
        StaleExpressionError: the graph of `e` was renewed.

    Example:
        >>> dy.to_device(dy.inputVector([1, 2]), "CPU").npvalue()
        array([1., 2.])
    """
    cdef Extra extra = no_extra()
    cdef int asked, source
    cdef uint32_t number
    cdef Graph* g
    if not isinstance(e, Expression):
        raise TypeError(f"to_device: e must be an Expression, not {type(e).__name__}")
    asked = asked_device(device_str, "to_device")
    g = claim_current()
    try:
        number = (<Expression>e).enter()
        if not asked:
            asked = 1 + g.device
        source = device_of(g, number)
        if asked - 1 == source:
            return operators["copy"](e)
        extra.device = asked
        extra.attrs[0].i = source                   # nodes with different sources do not run together
        return apply1x(TO_DEVICE, e, &extra)
    finally:
        release_current(g)
