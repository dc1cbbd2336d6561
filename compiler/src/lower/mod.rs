//! Lowering: from decisions to programs. `collect` lists what all ranks do, in one order; `program` is one rank's part.
