//! Joins two kernels: keys and values of a token are encoded in one launch.
//!
//! Keys and values are two tensors in two pools, often with two codecs. A kernel for each pair of codecs
//! would make 64 kernels per head dim. Instead, the text for the driver holds the two kernels of a cache as
//! one entry, one behind the other. Blocks of row 0 of the grid run the first kernel, and blocks of row 1 run
//! the second. The parameters of both follow in this order.

/// The name of the entry that [`side_by_side`] writes.
pub const PAIR: &str = "side_by_side";

/// A PTX text with two of its kernels as one entry, [`PAIR`], and no other. Returns `None` if one of them is
/// missing. The kernels must count blocks along x only.
pub fn side_by_side(text: &str, names: [&str; 2]) -> Option<String> {
    let mut kernels = text.split(".visible .entry ");
    let shared = kernels.next()?;
    let kernel = |name: &str| kernels.clone().find_map(|kernel| Kernel::new(kernel, name));
    let (first, second) = (kernel(names[0])?, kernel(names[1])?);
    let second = [second.parameters, second.body].map(|part| renamed(part, names[1]));
    Some(format!(
        "{shared}.visible .entry {PAIR}({},{}\n)\n{{\n\t.reg .pred \t%second;\n\t.reg .b32 \t%row;\n\
         \tmov.u32 \t%row, %ctaid.y;\n\tsetp.ge.u32 \t%second, %row, 1;\n\t@%second bra \t$L__second;{}\n\
         $L__second:{}\n}}\n",
        first.parameters, second[0], first.body, second[1]
    ))
}

/// A kernel of a text: the text between its parentheses, and the text between its braces.
#[derive(Clone, Copy)]
struct Kernel<'a> {
    parameters: &'a str,
    body: &'a str,
}

impl<'a> Kernel<'a> {
    /// Reads a kernel if `text` starts with `name`. It would lose directives, but encoders have none.
    fn new(text: &'a str, name: &str) -> Option<Self> {
        let (parameters, rest) = text.strip_prefix(name)?.strip_prefix('(')?.split_once("\n)\n{")?;
        Some(Self { parameters, body: rest.split_once("\n}")?.0 })
    }
}

/// Renames the registers, the labels and the parameters of kernel `name`.
fn renamed(text: &str, name: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
    let (mut out, mut rest) = (String::with_capacity(text.len() + text.len() / 8), text);
    while let Some(start) = rest.find(|c: char| is_part(c) || c == '%') {
        out += &rest[..start];
        let word = &rest[start..];
        let end = word.find(|c: char| !is_part(c) && c != '%').unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        // `%tid.x` is a special register, and keeps its name.
        if let Some(register) = word.strip_prefix('%').filter(|_| !after.starts_with('.')) {
            out += "%b_";
            out += register;
        } else {
            out += word;
            if word.starts_with('$')
                || word.strip_prefix(name).is_some_and(|rest| rest.starts_with("_param_"))
            {
                out += "_b";
            }
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_kernel_shares_no_name_with_the_first() {
        let kernel = ".visible .entry f(\n\t.param .u64 f_param_0\n)\n{\n\t.reg .b32 \t%r<3>;\n\t\
                      ld.param.b64 \t%rd1, [f_param_0];\n\tmov.u32 \t%r1, %ctaid.x;\n\tmov.b64 \t%rd2, table_$_f;\n\
                      $L__BB1_2:\n\t@%p1 bra \t$L__BB1_2;\n\tret;\n}\n";
        let text = format!(".version 7.8\n{kernel}");
        let pair = side_by_side(&text, ["f", "f"]).unwrap();
        let (first, second) = pair.split_once("$L__second:").unwrap();
        assert!(first.contains("\t.param .u64 f_param_0,\n\t.param .u64 f_param_0_b\n)"));
        assert!(first.contains("[f_param_0];") && first.contains("bra \t$L__BB1_2;\n\tret;"));
        assert_eq!(
            second,
            "\n\t.reg .b32 \t%b_r<3>;\n\tld.param.b64 \t%b_rd1, [f_param_0_b];\n\tmov.u32 \t%b_r1, %ctaid.x;\n\t\
             mov.b64 \t%b_rd2, table_$_f;\n$L__BB1_2_b:\n\t@%b_p1 bra \t$L__BB1_2_b;\n\tret;\n}\n"
        );
        assert_eq!(pair.matches(".entry").count(), 1);
        assert!(side_by_side(&text, ["f", "g"]).is_none());
    }

    #[test]
    fn every_two_encoders_fit_together() {
        let text = include_str!("../ptx/sm_80.ptx");
        for names in [["s4", "s4"], ["t4", "s2"], ["i8", "t3"]] {
            let names = names.map(|codec| format!("encode_append_{codec}_d128"));
            let pair = side_by_side(text, names.each_ref().map(String::as_str)).unwrap();
            let (head, body) = pair.split_once(PAIR).unwrap().1.split_once("\n)\n").unwrap();
            assert_eq!(head.matches(".param").count(), 28);
            let labels: Vec<&str> = body.lines().filter(|line| line.starts_with('$')).collect();
            let mut once = labels.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), labels.len());
        }
    }
}
