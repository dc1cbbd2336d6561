//! Products by kernels of graphc's own, where no library computes them: a whole product ([`own_product`]), or the epilogue of a
//! product that a library has left in the result ([`product_end`]).
//!
//! A block sums a tile of the result over tiles of both factors in shared memory; tensor cores multiply halves. The order of a
//! sum follows from the inner extent alone.

use graphc_ir::types::DType;

use super::super::call::{Activation, Argument, Epilogue, Launch, Matrix, MatrixProduct, Summed};
use super::super::source::{KernelSource, access_width};

/// Threads of a block.
const THREADS: usize = 256;
/// Blocks that keep the multiprocessors of a large card busy.
const BLOCKS: usize = 132;
/// The most sums of columns that a thread makes at once.
const ABREAST: usize = 4;

/// The launches of a product of floating-point numbers and of its epilogue.
pub fn own_product(product: &MatrixProduct) -> Vec<Launch> {
    if !product.instead.is_empty() {
        return product.instead.clone();
    }
    let tiles = product.starts.iter().map(|start| launch_tiles(product, *start));
    tiles.chain(launch_sums(product)).collect()
}

/// The launches behind a product that was made [without its epilogue](MatrixProduct::without_epilogue), of which there is one matrix. The
/// result is then rounded before they read it.
pub fn product_end(product: &MatrixProduct) -> Vec<Launch> {
    launch_end(product).into_iter().chain(launch_sums(product)).collect()
}

impl MatrixProduct {
    /// Returns the product without its epilogue, except the summand of the result's shape, which libraries add without one too.
    pub fn without_epilogue(&self) -> Self {
        let epilogue = Epilogue { added: self.epilogue.added, ..Epilogue::default() };
        Self { epilogue, ..self.clone() }
    }

    /// Elements of a factor or of the result that are read or written at once: a divisor of their distances, of the `extent` along
    /// which they follow each other, and of where the matrices begin.
    fn access_width(&self, part: usize, dtype: DType, matrix: &Matrix, extent: usize) -> usize {
        let starts = self.starts.iter().map(|start| start[part]);
        access_width(dtype.size(), starts.chain([matrix.leading, matrix.stride, extent]))
    }
}

/// The products of a row that begin at `start`, with their ends.
fn launch_tiles(product: &MatrixProduct, start: [usize; 3]) -> Launch {
    let MatrixProduct { rows, inner, columns, batch, .. } = *product;
    let blocks = |tile: usize| rows.div_ceil(tile) * columns.div_ceil(tile) * batch;
    let large = rows.min(columns) > 64 && blocks(128) >= BLOCKS;
    let tile = if large { 128 } else { 64 };
    let operands = product.operands;
    let floats = operands.dtype == DType::F32;
    let body = match floats {
        true => include_str!("../cu/product_floats.cu"),
        false => include_str!("../cu/product_halves.cu"),
    };
    // The elements of a line follow each other in rows of the first factor, and in columns of the second.
    let (a_along, b_along) = (!product.a.by_columns, product.b.by_columns);
    let a_width =
        product.access_width(0, operands.dtype, &product.a, if a_along { inner } else { rows });
    let b_width =
        product.access_width(1, operands.dtype, &product.b, if b_along { inner } else { columns });
    let head = if floats { "" } else { include_str!("../cu/tensor_cores.cuh") };
    let source = write_ending(product, &product.epilogue, head)
        .followed_by(include_str!("../cu/product_tiles.cuh"))
        .followed_by(body)
        .define_element("T", operands.dtype)
        .define("ROWS", rows)
        .define("INNER", inner)
        .define("COLUMNS", columns)
        .define("TILE", tile)
        .define("TILE_K", if floats { 16 } else { 32 })
        .define("OUT_WIDTH", product.access_width(2, operands.made, &product.out, columns));
    let source = define_factor(source, "A", &product.a, a_along, a_width);
    let source = define_factor(source, "B", &product.b, b_along, b_width);
    let source = define_distances(source, "OUT", &product.out);
    let mut arguments = vec![operands.a, operands.b, operands.out];
    let Epilogue { added, bias, kept, .. } = product.epilogue;
    arguments.extend([added, bias, kept].map(|place| place.unwrap_or(operands.out)));
    let mut arguments: Vec<Argument> = arguments.into_iter().map(Argument::Address).collect();
    let halves = |start: usize| [start as u32, (start as u64 >> 32) as u32];
    arguments.extend(start.into_iter().flat_map(halves).map(Argument::Constant));
    Launch::kernel(source, "product_tiles", blocks(tile), THREADS, arguments)
}

fn define_factor(
    source: KernelSource,
    name: &str,
    matrix: &Matrix,
    along: bool,
    width: usize,
) -> KernelSource {
    define_distances(source, name, matrix)
        .define_flag(&format!("{name}_ALONG_K"), along)
        .define(&format!("{name}_WIDTH"), width)
}

fn define_distances(source: KernelSource, name: &str, matrix: &Matrix) -> KernelSource {
    source
        .define(&format!("{name}_LEADING"), format!("{}ull", matrix.leading))
        .define(&format!("{name}_STRIDE"), format!("{}ull", matrix.stride))
}

/// The text of what becomes of sums, behind a `head`.
fn write_ending(product: &MatrixProduct, epilogue: &Epilogue, head: &str) -> KernelSource {
    let activation = match epilogue.activation {
        Activation::None => "NOTHING",
        Activation::Relu => "RELU",
        Activation::GeluTanh => "GELU",
        Activation::GeluTanhGrad => "GELU_GRAD",
    };
    KernelSource::new(head)
        .followed_by(include_str!("../cu/product_end.cuh"))
        .define_element("OUT", product.operands.made)
        .define_flag("ADDED", epilogue.added.is_some())
        .define_flag("BIAS", epilogue.bias.is_some())
        .define_flag("KEPT", epilogue.kept.is_some())
        .define("ACTIVATION", activation)
}

/// The epilogue of sums that lie in the result, to which the summand of its shape was added.
fn launch_end(product: &MatrixProduct) -> Option<Launch> {
    let epilogue = Epilogue { added: None, ..product.epilogue };
    if epilogue.bias.is_none() && epilogue.activation == Activation::None {
        return None;
    }
    let (elements, out) = (product.rows * product.columns, product.operands.out);
    let together = access_width(product.operands.made.size(), [product.columns]);
    let source = write_ending(product, &epilogue, "")
        .followed_by(include_str!("../cu/product_end.cu"))
        .define("COLUMNS", product.columns)
        .define("ELEMENTS", elements)
        .define("WIDTH", together)
        .define_index(elements);
    let places = [out, epilogue.bias.unwrap_or(out), epilogue.kept.unwrap_or(out)];
    let arguments = places.map(Argument::Address).to_vec();
    let blocks = elements.div_ceil(THREADS * together);
    Some(Launch::kernel(source, "product_end", blocks, THREADS, arguments))
}

/// The sums that come out beside the result.
fn launch_sums(product: &MatrixProduct) -> Option<Launch> {
    let (summed, place) = product.epilogue.sums?;
    let MatrixProduct { rows, inner, columns, operands, .. } = *product;
    // Sums, elements of each, and the matrix: which it is, its place, its type, and whether the elements of a sum follow each other.
    let (count, each, matrix, part, from, dtype, along) = match summed {
        Summed::Result => (columns, rows, &product.out, 2, operands.out, operands.made, false),
        Summed::First => {
            let a = &product.a;
            (rows, inner, a, 0, operands.a, operands.dtype, !a.by_columns)
        }
        Summed::Second => {
            let b = &product.b;
            (columns, inner, b, 1, operands.b, operands.dtype, b.by_columns)
        }
    };
    let leading = matrix.leading;
    let (between_sums, between_elements) = if along { (leading, 1) } else { (1, leading) };
    let abreast =
        if along { 1 } else { product.access_width(part, dtype, matrix, count).min(ABREAST) };
    // A block that goes down columns has 32 of them.
    let (threads, lanes) = if along { (THREADS, 32) } else { (4 * THREADS, THREADS / 8 * abreast) };
    let source = KernelSource::new(include_str!("../cu/product_sums.cu"))
        .define_element("T", dtype)
        .define_element("OUT", operands.made)
        .define("SUMS", count)
        .define("COUNT", each)
        .define("BETWEEN_SUMS", format!("{between_sums}ull"))
        .define("BETWEEN_ELEMENTS", format!("{between_elements}ull"))
        .define("ABREAST", abreast)
        .define("THREADS", threads)
        .define("LANES", lanes);
    let arguments = [from, place].map(Argument::Address).to_vec();
    let blocks = count.div_ceil(threads / lanes * abreast);
    Some(Launch::kernel(source, "product_sums", blocks, threads, arguments))
}
