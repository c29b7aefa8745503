from typing import final

from dynet_cy.memory.changes import Change
from dynet_cy.train.interfaces import Backend

@final
class HostUpdate(Change): ...

@final
class HostAxpby(Change): ...

class HostBackend(Backend): ...
