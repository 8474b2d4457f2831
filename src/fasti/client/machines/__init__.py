"""The SDK's protocol without I/O: state machines that a shell of threads or an event loop drives.

What arrived, what user code calls and what the clocks show goes in; what is to be written, handed over
and waited for comes out. Nothing here has a lock, a thread, a socket, a clock or a random draw: the
shell serialises the calls. The few methods that need no lock say so.
"""
