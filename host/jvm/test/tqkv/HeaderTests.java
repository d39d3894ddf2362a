package tqkv;

import static tqkv.Check.equal;
import static tqkv.Check.test;
import static tqkv.Check.that;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.RecordComponent;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The declarations of Native.java are those of tqkv.h. */
final class HeaderTests {
    private static final Map<String, ValueLayout> TYPES = Map.of(
        "size_t", ValueLayout.JAVA_LONG, "ptrdiff_t", ValueLayout.JAVA_LONG, "int32_t", ValueLayout.JAVA_INT, "uint32_t", ValueLayout.JAVA_INT,
        "tqkv_status", ValueLayout.JAVA_INT, "int", ValueLayout.JAVA_INT, "float", ValueLayout.JAVA_FLOAT,
        "tqkv_write_fn", ValueLayout.ADDRESS, "tqkv_read_fn", ValueLayout.ADDRESS);

    private HeaderTests() {}

    static void run(String header) {
        String code = Pattern.compile("/\\*.*?\\*/|//[^\n]*", Pattern.DOTALL).matcher(header).replaceAll(" ");

        test("each function has the parameters of the header", () -> {
            Map<String, FunctionDescriptor> prototypes = prototypes(code);
            that(prototypes.size() > 60, prototypes.size() + " prototypes");
            that(Native.DECLARED.size() > 25, Native.DECLARED.size() + " declarations");
            for (var declared : Native.DECLARED.entrySet())
                equal(declared.getKey() + " " + declared.getValue(), declared.getKey() + " " + prototypes.get(declared.getKey()));
        });

        test("callbacks have the parameters of the header", () -> {
            Map<String, FunctionDescriptor> found = new TreeMap<>();
            Matcher types = Pattern.compile("typedef (\\w+) \\(\\*(\\w+)\\)\\(([^)]*)\\);").matcher(code);
            while (types.find()) found.put(types.group(2), descriptor(types.group(1), types.group(3)));
            equal(found, new TreeMap<>(Map.of("tqkv_write_fn", Native.WRITE, "tqkv_read_fn", Native.READ)));
        });

        test("the numbers of a cache are in the order of the header", () -> {
            Matcher struct = Pattern.compile("typedef struct \\{([^}]*)\\} tqkv_cache_stats;").matcher(code);
            that(struct.find(), "no tqkv_cache_stats");
            List<String> fields = Arrays.stream(struct.group(1).split(";")).map(String::strip).filter(field -> !field.isEmpty()).toList();
            List<String> ours = Arrays.stream(CacheStats.class.getRecordComponents()).map(HeaderTests::field).toList();
            equal(ours, fields);
        });

        test("the type of numbers is that of the header", () -> {
            Matcher f32 = Pattern.compile("TQKV_F32 = (\\d+)").matcher(code);
            that(f32.find(), "no TQKV_F32");
            equal(Native.F32, Integer.parseInt(f32.group(1)));
        });
    }

    private static Map<String, FunctionDescriptor> prototypes(String code) {
        Map<String, FunctionDescriptor> found = new TreeMap<>();
        Matcher functions = Pattern.compile("^((?:const )?\\w+ \\**)(tqkv_\\w+)\\(([^)]*)\\);", Pattern.MULTILINE).matcher(code);
        while (functions.find()) found.put(functions.group(2), descriptor(functions.group(1).strip(), functions.group(3)));
        return found;
    }

    private static FunctionDescriptor descriptor(String result, String parameters) {
        MemoryLayout[] layouts = parameters.strip().equals("void")
            ? new MemoryLayout[0]
            : Arrays.stream(parameters.split(",")).map(one -> layout(one.strip().replaceAll("\\w+$", ""))).toArray(MemoryLayout[]::new);
        return result.equals("void") ? FunctionDescriptor.ofVoid(layouts) : FunctionDescriptor.of(layout(result), layouts);
    }

    private static ValueLayout layout(String type) {
        if (type.contains("*")) return ValueLayout.ADDRESS;
        ValueLayout layout = TYPES.get(type.strip());
        that(layout != null, "the header has a type " + type + " that is not known here");
        return layout;
    }

    private static String field(RecordComponent one) {
        that(one.getType() == long.class, one);
        return "size_t " + one.getName().chars().mapToObj(c -> Character.isUpperCase(c) ? "_" + (char) Character.toLowerCase(c) : "" + (char) c)
            .collect(Collectors.joining());
    }
}
