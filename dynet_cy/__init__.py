"""dynet_cy"""
import dynet_cy.execute.cpu
from dynet_cy.graph import *
from dynet_cy.model import *
from dynet_cy.ops.unary import *
from dynet_cy.ops.linalg import *
from dynet_cy.ops.arithmetic import *
from dynet_cy.ops.inputs import *
from dynet_cy.ops.reduce import *
from dynet_cy.ops.shape import *
from dynet_cy.ops.softmax import *
from dynet_cy.ops.cells import *
from dynet_cy.ops.random import *
from dynet_cy.ops.conv import *
from dynet_cy.ops.losses import *
from dynet_cy.ops.norm import *
