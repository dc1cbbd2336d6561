//! Properties that every op must have, held for each variant of `Op`:
//!
//! 1. `signatures`: every derived SBP signature, executed on shards and recombined, equals the whole;
//! 2. `completeness`: no other assignment of B, S and P(sum) on one mesh axis computes the whole;
//! 3. `gradients`: gradients agree with central finite differences;
//! 4. `names`: `name()` is the tag of the serialized form, and no variant is without cases.

mod cases;
mod completeness;
mod conventions;
mod gradients;
mod names;
mod shards;
mod signatures;
