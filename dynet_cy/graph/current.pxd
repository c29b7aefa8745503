"""The current graph: that of the innermost `with` of a task or thread, else one that the thread has of itself."""

from dynet_cy.graph.structs cimport Graph

# Makes a graph: the object that owns it, which is returned, and where it is.
ctypedef object (*NewGraph)(Graph** g)

# How the implicit graph of a thread is made: filled by the module of the class.
cdef void set_new_graph(NewGraph make) noexcept
# The current graph, or NULL where none was made yet.
cdef Graph* graph_here() noexcept
# The current graph; the implicit one of the thread is made if needed.
cdef Graph* current_graph() except NULL
cdef int enter_graph(object owner, Graph* g) except -1
cdef int leave_graph(object owner) except -1
# A graph is closed.
cdef void forget_current(Graph* g) noexcept
