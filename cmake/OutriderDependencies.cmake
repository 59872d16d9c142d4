# Every third-party library, found once. CONTRIBUTING.md says why each is here.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(FlatBuffers REQUIRED)

# cppzmq's own package file wants libzmq's, which Debian ships as pkg-config only.
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZeroMQ REQUIRED IMPORTED_TARGET libzmq>=4.3)

# Asio and Beast are headers alone.
find_package(Boost 1.74 REQUIRED CONFIG)

# SHA-256 of API keys, and TLS.
find_package(OpenSSL 3.0 REQUIRED)

# Its own package file wants what its HTTP server and client are built on, which we do not use.
pkg_check_modules(Prometheus REQUIRED IMPORTED_TARGET prometheus-cpp-core>=1.0)

# Lines that are edited, in `outrider chat`.
pkg_check_modules(Libedit REQUIRED IMPORTED_TARGET libedit)

# Pictures.
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)
pkg_check_modules(WebP REQUIRED IMPORTED_TARGET libwebp libwebpdemux)

# Files of videos, which are refused without it.
pkg_check_modules(FFmpeg QUIET IMPORTED_TARGET libavformat>=59 libavcodec>=59 libswscale>=6 libavutil>=57)
if(NOT FFmpeg_FOUND)
  message(STATUS "Without FFmpeg, which is optional: files of videos will be refused (./setup --help)")
endif()

# Sounds.
pkg_check_modules(SoundFile REQUIRED IMPORTED_TARGET sndfile)
pkg_check_modules(Mpg123 REQUIRED IMPORTED_TARGET libmpg123>=1.27)
pkg_check_modules(SampleRate REQUIRED IMPORTED_TARGET samplerate)

# oneDNN, but on aarch64, where it has nothing for us (common/compute/kernels/README.md): the one that ./setup --onednn source built, if there is one; else the distribution's.
set(outrider_cache "$ENV{HOME}/.cache/outrider")
if(DEFINED ENV{OUTRIDER_CACHE})
  set(outrider_cache "$ENV{OUTRIDER_CACHE}")
endif()
set(OUTRIDER_ONEDNN_CACHE "${outrider_cache}/onednn-3.7.2" CACHE PATH
    "Where ./setup --onednn source installs oneDNN")
if(NOT OUTRIDER_AARCH64)
  find_package(dnnl QUIET PATHS ${OUTRIDER_ONEDNN_CACHE} NO_DEFAULT_PATH)
  if(NOT dnnl_FOUND)
    find_package(dnnl REQUIRED)
  endif()
  get_target_property(dnnl_location DNNL::dnnl LOCATION)
  message(STATUS "oneDNN ${dnnl_VERSION} from ${dnnl_location}")
endif()

include(OutriderXGrammar)
