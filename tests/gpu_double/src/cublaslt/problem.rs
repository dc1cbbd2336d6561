//! A product as one typed value: everything about it that can be known without its operands.
//!
//! A product that cuBLASLt's documentation forbids is refused here, whether the heuristic or the product itself asks.

use super::descriptors::{FULL, Layout, MatmulDescriptor};
use super::types::*;

/// D = epilogue(alpha op(A) op(B) + beta C), a number of times.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Rows of D.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// Columns of op(A), rows of op(B).
    pub k: usize,
    /// The number of products.
    pub batch: usize,
    /// The precision in which operands are multiplied.
    pub compute: Compute,
    /// The memory in which alpha and beta are.
    pub pointer_mode: PointerMode,
    /// Whether A is transposed.
    pub transpose_a: bool,
    /// Whether B is transposed.
    pub transpose_b: bool,
    /// The first factor.
    pub a: Matrix,
    /// The second factor.
    pub b: Matrix,
    /// The summand.
    pub c: Matrix,
    /// The result.
    pub d: Matrix,
    /// The operation on the result.
    pub epilogue: Epilogue,
    /// Elements from a vector at the bias pointer to the next of the batch.
    pub vector_stride: usize,
    /// Elements (bits of a mask) from a column of the aux buffer to the next.
    pub aux_ld: usize,
    /// Elements (bits of a mask) from an aux buffer to the next of the batch.
    pub aux_stride: usize,
}

/// The storage of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Type of its elements.
    pub element: Element,
    /// Rows, before any transposition.
    pub rows: usize,
    /// Columns, before any transposition.
    pub cols: usize,
    /// The order of its elements.
    pub order: Order,
    /// Elements from a column (a row, if rows follow each other) to the next.
    pub ld: usize,
    /// Elements from a matrix to the next of the batch.
    pub stride: usize,
    /// Matrices.
    pub batch: usize,
}

impl Matrix {
    /// The matrix of a layout, `name` being what messages call it.
    fn of(layout: &Layout, name: char) -> Result<Matrix, Refusal> {
        let matrix = Matrix {
            element: Element::of(layout.element)?,
            order: Order::of(layout.order)?,
            rows: extent(layout.rows, name, "rows")?,
            cols: extent(layout.cols, name, "columns")?,
            ld: usize::try_from(layout.ld)
                .map_err(|_| invalid(format!("{name} has leading dimension {}", layout.ld)))?,
            stride: usize::try_from(layout.batch_offset)
                .map_err(|_| unsupported(format!("{name} has stride {}", layout.batch_offset)))?,
            batch: batch(layout, name)?,
        };
        matrix.check_ld(name)
    }

    fn check_ld(self, name: char) -> Result<Matrix, Refusal> {
        let (_, inner) = self.lines();
        if self.ld < inner {
            return Err(invalid(format!("{name} has leading dimension {} below {inner}", self.ld)));
        }
        Ok(self)
    }

    /// Columns and the elements of each, or rows and the elements of each.
    pub fn lines(self) -> (usize, usize) {
        match self.order {
            Order::Column => (self.cols, self.rows),
            Order::Row => (self.rows, self.cols),
        }
    }

    /// Elements from the first to behind the last of one matrix.
    pub fn span(self) -> usize {
        let (lines, inner) = self.lines();
        (lines - 1) * self.ld + inner
    }

    /// Bytes from the first to behind the last element of the whole batch.
    pub fn bytes(self) -> usize {
        ((self.batch - 1) * self.stride + self.span()) * self.element.bytes()
    }
}

fn extent(extent: u64, name: char, what: &str) -> Result<usize, Refusal> {
    match i32::try_from(extent) {
        Ok(0) => Err(invalid(format!("{name} has 0 {what}"))),
        Ok(extent) => Ok(extent as usize),
        Err(_) => Err(unsupported(format!("{name} has {extent} {what}"))),
    }
}

fn batch(layout: &Layout, name: char) -> Result<usize, Refusal> {
    if layout.plane_offset != 0 || layout.batch_mode != 0 {
        return Err(unsupported(format!("{name} has planes, or pointers of a batch")));
    }
    usize::try_from(layout.batch_count)
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| invalid(format!("{name} has a batch of {}", layout.batch_count)))
}

impl Problem {
    /// The product of a descriptor and the layouts of A, B, C and D, or why there is none.
    pub fn of(descriptor: &MatmulDescriptor, layouts: [&Layout; 4]) -> Result<Problem, Refusal> {
        let [a, b, c, d] = [
            Matrix::of(layouts[0], 'A')?,
            Matrix::of(layouts[1], 'B')?,
            Matrix::of(layouts[2], 'C')?,
            Matrix::of(layouts[3], 'D')?,
        ];
        let (transpose_a, transpose_b) =
            (transposed(descriptor.transpose_a)?, transposed(descriptor.transpose_b)?);
        let problem = Problem {
            m: d.rows,
            n: d.cols,
            k: if transpose_a { a.rows } else { a.cols },
            batch: d.batch,
            compute: Compute::of(descriptor.compute_type)?,
            pointer_mode: PointerMode::of(descriptor.pointer_mode)?,
            transpose_a,
            transpose_b,
            a,
            b,
            c,
            d,
            epilogue: Epilogue::of(descriptor.epilogue)?,
            vector_stride: stride(descriptor.bias_batch_stride, "bias")?,
            aux_ld: stride(descriptor.aux_ld, "aux columns")?,
            aux_stride: stride(descriptor.aux_batch_stride, "aux")?,
        };
        no_extras(descriptor)?;
        problem.check_shapes()?;
        problem.check_types(descriptor)?;
        problem.check_batches()?;
        problem.check_epilogue(descriptor)?;
        Ok(problem)
    }

    fn check_shapes(&self) -> Result<(), Refusal> {
        let turned = |matrix: Matrix, transposed: bool| {
            if transposed { (matrix.cols, matrix.rows) } else { (matrix.rows, matrix.cols) }
        };
        let (a, b) = (turned(self.a, self.transpose_a), turned(self.b, self.transpose_b));
        let (m, n) = (self.m, self.n);
        if a.0 != m || b != (a.1, n) || (self.c.rows, self.c.cols) != (m, n) {
            let (c_rows, c_cols) = (self.c.rows, self.c.cols);
            return Err(invalid(format!(
                "op(A) is {}x{}, op(B) {}x{}, C {c_rows}x{c_cols}, D {m}x{n}",
                a.0, a.1, b.0, b.1
            )));
        }
        Ok(())
    }

    fn check_types(&self, descriptor: &MatmulDescriptor) -> Result<(), Refusal> {
        let (a, b, c, d) = (self.a.element, self.b.element, self.c.element, self.d.element);
        if descriptor.scale_type != 0 {
            let scale = descriptor.scale_type;
            return Err(unsupported(format!("sums in f32 with scales of cudaDataType_t {scale}")));
        }
        let pair = a == b && c == d && (d == a || d == Element::F32);
        let fast = self.compute == Compute::F32 || (a, d) == (Element::F32, Element::F32);
        if !pair || !fast {
            let compute = self.compute;
            return Err(unsupported(format!("{a:?} x {b:?} + {c:?} -> {d:?} by {compute:?}")));
        }
        Ok(())
    }

    fn check_batches(&self) -> Result<(), Refusal> {
        let counts = [self.a.batch, self.b.batch, self.c.batch, self.d.batch];
        if counts.iter().any(|&count| count != self.batch) {
            return Err(invalid(format!("batches of A, B, C and D: {counts:?}")));
        }
        if self.batch > 1 && self.d.stride < self.d.span() {
            let (stride, span) = (self.d.stride, self.d.span());
            return Err(invalid(format!("matrices of D overlap: {span} elements, {stride} apart")));
        }
        Ok(())
    }

    fn check_epilogue(&self, descriptor: &MatmulDescriptor) -> Result<(), Refusal> {
        let plain = self.epilogue.vector == Vector::None && !self.epilogue.aux;
        if !plain && self.d.order == Order::Row {
            return Err(unsupported("an epilogue with a bias or an aux buffer on rows of D"));
        }
        self.check_vector(descriptor)?;
        self.check_aux(descriptor)
    }

    fn check_vector(&self, descriptor: &MatmulDescriptor) -> Result<(), Refusal> {
        if self.epilogue.vector == Vector::None {
            return Ok(());
        }
        if descriptor.bias_data_type != -1
            && Element::of(descriptor.bias_data_type)? != self.d.element
        {
            return Err(unsupported("a bias of another type than D"));
        }
        let gradient = self.epilogue.vector != Vector::Bias;
        if gradient && self.batch > 1 && self.vector_stride < self.vector_length() {
            return Err(invalid("gradients of biases of a batch overlap"));
        }
        Ok(())
    }

    /// Elements of the vector at the bias pointer.
    pub fn vector_length(&self) -> usize {
        match self.epilogue.vector {
            Vector::None => 0,
            Vector::Bias | Vector::RowSums | Vector::SumsOfA => self.m,
            Vector::SumsOfB => self.n,
        }
    }

    fn check_aux(&self, descriptor: &MatmulDescriptor) -> Result<(), Refusal> {
        if !self.epilogue.aux {
            return Ok(());
        }
        let aux_type = descriptor.aux_data_type;
        if aux_type != -1 && (self.epilogue.masks() || Element::of(aux_type)? != self.d.element) {
            return Err(unsupported("an aux buffer of another type than D"));
        }
        let multiple = if self.epilogue.masks() { 128 } else { 8 };
        if self.aux_ld < self.m || !self.aux_ld.is_multiple_of(multiple) {
            return Err(invalid(format!(
                "aux leading dimension {} for {} rows: at least as many, a multiple of {multiple}",
                self.aux_ld, self.m
            )));
        }
        let apart = self.batch == 1 || self.aux_stride >= self.aux_ld * self.n;
        if !apart || !self.aux_stride.is_multiple_of(multiple) {
            return Err(invalid(format!("aux buffers of a batch are {} apart", self.aux_stride)));
        }
        Ok(())
    }

    /// Bytes of the aux buffer of one product.
    pub fn aux_bytes(&self) -> usize {
        let elements = self.aux_ld * (self.n - 1) + self.m;
        if self.epilogue.masks() {
            (self.aux_ld * (self.n - 1)) / 8 + self.m.div_ceil(8)
        } else {
            elements * self.d.element.bytes()
        }
    }
}

fn stride(stride: i64, name: &str) -> Result<usize, Refusal> {
    usize::try_from(stride).map_err(|_| invalid(format!("{name} are {stride} apart")))
}

/// Refuses attributes that only other types have, or that the double does not compute.
fn no_extras(descriptor: &MatmulDescriptor) -> Result<(), Refusal> {
    if descriptor.scales.iter().any(|&scale| scale != 0) {
        return Err(invalid("scales of operands, which types of 8 bits alone have"));
    }
    let strides = [
        descriptor.alpha_vector_batch_stride,
        descriptor.alpha_batch_stride,
        descriptor.beta_batch_stride,
    ];
    let modes = descriptor.scale_modes.iter().any(|&mode| mode != 0);
    if modes || descriptor.fast_accumulation != 0 || strides != [0; 3] {
        return Err(unsupported("scale modes, fast accumulation, or an alpha for each product"));
    }
    if transposed(descriptor.transpose_c)? || descriptor.fill_mode != FULL {
        return Err(unsupported("a C that is transposed, or half of a matrix"));
    }
    Ok(())
}
