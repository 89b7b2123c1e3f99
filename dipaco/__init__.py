"""DiPaCo: one large modular language model, trained as many small paths.

Nothing heavy is imported here: `import dipaco` answers at once, and each room loads what it needs.
"""

__version__ = "0.3.0"
