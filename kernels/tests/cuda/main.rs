//! Kernels of cards on the double of a card.

#[path = "../common/calls.rs"]
mod calls;
#[path = "../cases/mod.rs"]
mod cases;
#[path = "../common/chains.rs"]
mod chains;
#[path = "../common/mod.rs"]
mod common;
mod epilogues;
mod fused;
#[path = "../common/growing.rs"]
mod growing;
#[path = "../common/joint.rs"]
mod joint;
mod kernels;
mod layers;
#[path = "../common/cuda.rs"]
mod on_card;
#[path = "../common/products.rs"]
mod products;
#[path = "../common/rectangles.rs"]
mod rectangles;
mod resources;
