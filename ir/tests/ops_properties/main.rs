//! Properties that every op must have, held for each variant of `Op`:
//!
//! 1. `signatures`: every derived SBP signature, executed on shards and recombined, equals the whole;
//! 2. `completeness`: no other assignment of B, S and P(sum) on one mesh axis computes the whole;
//! 3. `extremes`: every derived signature equals the whole for zeros, denormal numbers, and what is not finite;
//! 4. `gradients`: gradients agree with central finite differences;
//! 5. `names`: `name()` is the tag of the serialized form, and no variant is without cases;
//! 6. `kinds`: what an op says that it is (a source, a movement, light) agrees with what it computes.

mod cases;
mod completeness;
mod conventions;
mod extremes;
mod gradients;
mod kinds;
mod names;
mod shards;
mod signatures;
