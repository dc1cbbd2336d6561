//! Imports of ONNX models and of the text form.

mod errors;
mod kinks;
mod layers;
mod ops;
mod references;
mod text;
mod weights;
