//! What the contract does not say, and a container has to keep all the same.
