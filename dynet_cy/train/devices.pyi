from typing import final

from dynet_cy.train.interfaces import Backend

@final
class Part: ...

class DevicesBackend(Backend): ...
