# Constructors of AMQP 1.0 (part 1 of the specification, sections 1.2 and 1.6).
# No ABI promise between releases.

cdef enum:
    DESCRIBED = 0x00

    # fixed width
    NULL = 0x40
    TRUE = 0x41
    FALSE = 0x42
    UINT0 = 0x43
    ULONG0 = 0x44
    LIST0 = 0x45
    UBYTE = 0x50
    BYTE = 0x51
    SMALLUINT = 0x52
    SMALLULONG = 0x53
    SMALLINT = 0x54
    SMALLLONG = 0x55
    BOOLEAN = 0x56
    USHORT = 0x60
    SHORT = 0x61
    UINT = 0x70
    INT = 0x71
    FLOAT = 0x72
    CHAR = 0x73
    DECIMAL32 = 0x74
    ULONG = 0x80
    LONG = 0x81
    DOUBLE = 0x82
    TIMESTAMP = 0x83
    DECIMAL64 = 0x84
    DECIMAL128 = 0x94
    UUID = 0x98

    # with a size of 8 or 32 bits
    VBIN8 = 0xa0
    STR8 = 0xa1
    SYM8 = 0xa3
    VBIN32 = 0xb0
    STR32 = 0xb1
    SYM32 = 0xb3
    LIST8 = 0xc0
    MAP8 = 0xc1
    LIST32 = 0xd0
    MAP32 = 0xd1
    ARRAY8 = 0xe0
    ARRAY32 = 0xf0

    FIRST_SIZED = 0xa0
    SIZE32 = 0x10           # the bit that distinguishes a 32-bit size from an 8-bit one
    NO_SIZE32 = 0xef        # all other bits

# Subcategories: the upper half of a constructor, which determines the width of the value.
cdef enum:
    EMPTY = 0x4
    FIXED_ONE = 0x5
    FIXED_SIXTEEN = 0x9
