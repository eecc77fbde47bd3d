//! The only room that knows every concrete type: it wires, serves and stops.
